// Rotary position embedding, half-split as Hugging Face lays it out: element i of a head pairs with element i + D/2
// (J. Su et al., "RoFormer", arXiv 2104.09864).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void rope(const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions, bool inverse);
}  // namespace cpu
namespace gpu {
void rope(Stream& stream, const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
          bool inverse);
}  // namespace gpu

// Rotates x in place: x [N, heads, D] whose rows lie row_stride elements apart (a slice of fused QKV); cosines, sines [P, D/2] fp32;
// positions [N] int32, each in [0, P) (on the GPU, which cannot report one outside, its row becomes NaN). inverse rotates back, which is
// the backward pass.
inline void rope(Context& context, const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines,
                 const Tensor& positions, bool inverse) {
  dispatch(
      context, [&] { cpu::rope(x, row_stride, cosines, sines, positions, inverse); },
      [&] { gpu::rope(context.stream, x, row_stride, cosines, sines, positions, inverse); });
}

}  // namespace baleen::ops
