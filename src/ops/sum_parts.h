// The sum of what several ranks have of the same elements, on a GPU. (On processors collectives add by themselves.)
#pragma once

#include <cstddef>
#include <span>

#include "device/stream.h"
#include "tensor/tensor.h"

namespace baleen::ops {

inline constexpr std::size_t most_parts = 16;

namespace gpu {
// out = scale · (parts[0] + parts[1] + …), added in this order in fp32 and rounded once: all [count] of one dtype, fp32 or bf16, at most
// most_parts. out may be one of the parts. `add`: to what out holds, rounded once more, which are the bits of a sum and an addition.
void sum_parts(Stream& stream, const Tensor& out, std::span<const Tensor> parts, float scale, bool add = false);
// Loads its kernels. The driver otherwise does so at the first launch, and may then wait for all that the GPU runs: also for streams that
// wait for other ranks.
void load_sum_parts(Stream& stream);
}  // namespace gpu

}  // namespace baleen::ops
