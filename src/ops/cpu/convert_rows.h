// Conversion of a matrix that lies inside a larger one.
#pragma once

#include "ops/matmul.h"

namespace baleen::ops::cpu {

// to = from, of one number of rows and columns as stored, each fp32 or bf16. Rounds to nearest, ties to even.
void convert_rows(const Matrix& to, const Matrix& from);

}  // namespace baleen::ops::cpu
