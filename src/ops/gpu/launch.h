// Host-side helpers of the GPU operations.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "tensor/tensor.h"

namespace baleen::ops::gpu {

// GPU operations are in fp32 so far. Throws Error with the remedy.
[[noreturn]] void refuse_dtype(const char* operation, DType dtype);
void require_fp32(const char* operation, std::initializer_list<const Tensor*> tensors);

// Throws Error when the last kernel could not be launched.
void check_launch(const char* operation);

// Blocks of `size` that cover `count`. BALEEN_CHECK fails beyond what a grid can have.
unsigned blocks_for(std::int64_t count, std::int64_t size);

}  // namespace baleen::ops::gpu
