// RMSNorm of each attention head over its D elements, in place inside fused QKV rows: Qwen3's QK-norm (A. Henry et al., "Query-key
// normalization", arXiv 2010.04245, with RMSNorm and one weight [D] for all heads). Both passes keep what the place held before, compact,
// for the passes after them; the weight's gradient is ops::rms_norm_backward_weight over these [N · heads, D] rows.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void head_norm_forward(const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd, const Tensor& weight, float eps);
void head_norm_backward_input(const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input, const Tensor& rstd,
                              const Tensor& weight);
}  // namespace cpu
namespace gpu {
void head_norm_forward(Stream& stream, const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd,
                       const Tensor& weight, float eps);
void head_norm_backward_input(Stream& stream, const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input,
                              const Tensor& rstd, const Tensor& weight);
}  // namespace gpu

// x [N, heads, D], rows row_stride elements apart: becomes x · rstd · weight, where rstd [N, heads] fp32 = 1 / sqrt(mean(x²) + eps).
// weight [D]; input [N, heads, D] compact gets what x was (undefined: nobody needs it).
inline void head_norm_forward(Context& context, const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd,
                              const Tensor& weight, float eps) {
  dispatch(
      context, [&] { cpu::head_norm_forward(x, row_stride, input, rstd, weight, eps); },
      [&] { gpu::head_norm_forward(context.stream, x, row_stride, input, rstd, weight, eps); });
}

// d_x [N, heads, D], rows row_stride elements apart: on entry the gradient of the norm's output, afterwards that of its input. d_out
// [N, heads, D] compact gets what it was; input and rstd are the forward pass's.
inline void head_norm_backward_input(Context& context, const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input,
                                     const Tensor& rstd, const Tensor& weight) {
  dispatch(
      context, [&] { cpu::head_norm_backward_input(d_x, row_stride, d_out, input, rstd, weight); },
      [&] { gpu::head_norm_backward_input(context.stream, d_x, row_stride, d_out, input, rstd, weight); });
}

}  // namespace baleen::ops
