// Rotary position embedding, half-split as Hugging Face lays it out: element i of a head pairs with element i + D/2
// (J. Su et al., "RoFormer", arXiv 2104.09864).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void rope(const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions, bool inverse);
void rope_backward_with_bias(const Tensor& d_y, std::int64_t rotated, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                             const Tensor& d_bias);
}  // namespace cpu
namespace gpu {
void rope(Stream& stream, const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
          bool inverse);
std::size_t rope_backward_with_bias_workspace(std::int64_t rows, std::int64_t columns);
void rope_backward_with_bias(Stream& stream, const Tensor& d_y, std::int64_t rotated, const Tensor& cosines, const Tensor& sines,
                             const Tensor& positions, const Tensor& d_bias, void* workspace);
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

// The backward pass of fused QKV's rotation and bias in one: rotates back, in place, the first `rotated` heads of d_y [N, O], whose columns
// are heads of D (from cosines [P, D/2]), and adds the sums of all its columns then to d_bias [O], fp32 or d_y's dtype, as bias_backward
// does; a GPU sums what it rotated before it rounds it.
inline void rope_backward_with_bias(Context& context, const Tensor& d_y, std::int64_t rotated, const Tensor& cosines, const Tensor& sines,
                                    const Tensor& positions, const Tensor& d_bias) {
  const std::int64_t rows = d_y.size(0), columns = d_y.size(1);
  const Arena::Scope scope(context.scratch);
  const Tensor partial =
      workspace(context, "bias gradient workspace", no_bytes, [&] { return gpu::rope_backward_with_bias_workspace(rows, columns); });
  dispatch(
      context, [&] { cpu::rope_backward_with_bias(d_y, rotated, cosines, sines, positions, d_bias); },
      [&] { gpu::rope_backward_with_bias(context.stream, d_y, rotated, cosines, sines, positions, d_bias, partial.data()); });
}

}  // namespace baleen::ops
