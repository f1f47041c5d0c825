// Copies of matrices that lie inside larger ones.
#pragma once

#include "ops/matmul.h"

namespace baleen::ops::cpu {

// to = from, both [rows, columns] of one dtype and stored as they are, by the caller's thread alone. `streamed`: whole cache lines of `to`
// go to memory past the caches, for what is not read again soon.
void copy_rows(const Matrix& to, const Matrix& from, bool streamed);

}  // namespace baleen::ops::cpu
