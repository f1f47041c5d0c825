// Transposition in memory.
#pragma once

#include "ops/matmul.h"

namespace baleen::ops::cpu {

// to [columns, rows] = from [rows, columns] transposed; both bf16 or both fp32 and stored as they are, rows `stride` elements apart. By the
// caller's thread alone.
void transpose_copy(const Matrix& to, const Matrix& from);

}  // namespace baleen::ops::cpu
