// The sum of token losses, in fp64 and in one order.
#pragma once

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {

inline constexpr int loss_threads = 512;

static __global__ void add_losses(std::int64_t rows, double* loss_sum, const float* losses) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += loss_threads) sum += losses[i];
  sum = block_reduce<Sum, loss_threads>(sum, 0.0);
  if (threadIdx.x == 0) *loss_sum += sum;
}

}  // namespace baleen::ops::gpu
