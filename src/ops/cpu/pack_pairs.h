// The layout of bf16 weights in which the library multiplies them soonest.
#pragma once

#include "ops/matmul.h"

namespace baleen::ops::cpu {

// b as the product sees it, [K, N] of bf16 and of either transposition, in oneDNN's layout BA16a64b2a: panels of 64 columns one after the
// other; of each panel the rows in pairs, and of a pair both halves of a column side by side, which is how bf16 instructions take them.
// Filled up with zeros to 32 rows and whole panels. The team's threads share the panels.
void pack_pairs(void* to, const Matrix& b);

}  // namespace baleen::ops::cpu
