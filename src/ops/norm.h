// Root-mean-square normalisation (B. Zhang, R. Sennrich, "Root mean square layer normalization", arXiv 1910.07467), fused with the
// residual addition before it:  residual = x + delta;  out = residual · rstd · weight;  rstd = 1 / sqrt(mean(residual²) + eps).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void rms_norm_forward(const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta,
                      const Tensor& weight, float eps);
void rms_norm_backward_input(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& rstd,
                             const Tensor& weight);
void rms_norm_backward_weight(const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd);
}  // namespace cpu
namespace gpu {
void rms_norm_forward(Stream& stream, const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta,
                      const Tensor& weight, float eps);
void rms_norm_backward_input(Stream& stream, const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x,
                             const Tensor& rstd, const Tensor& weight);
std::size_t rms_norm_backward_workspace(std::int64_t rows, std::int64_t columns);
void rms_norm_backward(Stream& stream, const Tensor& d_x, const Tensor& d_weight, const Tensor& d_out, const Tensor& d_residual,
                       const Tensor& x, const Tensor& rstd, const Tensor& weight, void* workspace);
std::size_t rms_norm_backward_weight_workspace(std::int64_t rows, std::int64_t columns);
void rms_norm_backward_weight(Stream& stream, const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd,
                              void* workspace);
}  // namespace gpu

// out, residual, x, delta [N, C]; rstd [N] fp32; weight [C]. Without delta (undefined) residual is not written and x is normalised;
// residual may be x.
inline void rms_norm_forward(Context& context, const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x,
                             const Tensor& delta, const Tensor& weight, float eps) {
  dispatch(
      context, [&] { cpu::rms_norm_forward(out, residual, rstd, x, delta, weight, eps); },
      [&] { gpu::rms_norm_forward(context.stream, out, residual, rstd, x, delta, weight, eps); });
}

// d_x [N, C] = d_residual (undefined: 0; may be d_x itself) + the gradient through the norm of x [N, C], given d_out [N, C].
inline void rms_norm_backward_input(Context& context, const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x,
                                    const Tensor& rstd, const Tensor& weight) {
  dispatch(
      context, [&] { cpu::rms_norm_backward_input(d_x, d_out, d_residual, x, rstd, weight); },
      [&] { gpu::rms_norm_backward_input(context.stream, d_x, d_out, d_residual, x, rstd, weight); });
}

// d_weight [C] fp32, or bf16 where x is, += Σ over N of d_out · x · rstd, summed in fp32 in an order that no thread changes, rounded once.
inline void rms_norm_backward_weight(Context& context, const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial = workspace(context, "norm weight gradient workspace", no_bytes,
                                   [&] { return gpu::rms_norm_backward_weight_workspace(rstd.elements(), d_weight.elements()); });
  dispatch(
      context, [&] { cpu::rms_norm_backward_weight(d_weight, d_out, x, rstd); },
      [&] { gpu::rms_norm_backward_weight(context.stream, d_weight, d_out, x, rstd, partial.data()); });
}

// Both of the above at once: on the GPU one pass over d_out and x instead of two.
inline void rms_norm_backward(Context& context, const Tensor& d_x, const Tensor& d_weight, const Tensor& d_out, const Tensor& d_residual,
                              const Tensor& x, const Tensor& rstd, const Tensor& weight) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial = workspace(context, "norm gradient workspace", no_bytes,
                                   [&] { return gpu::rms_norm_backward_workspace(rstd.elements(), d_weight.elements()); });
  dispatch(
      context,
      [&] {
        cpu::rms_norm_backward_weight(d_weight, d_out, x, rstd);
        cpu::rms_norm_backward_input(d_x, d_out, d_residual, x, rstd, weight);
      },
      [&] { gpu::rms_norm_backward(context.stream, d_x, d_weight, d_out, d_residual, x, rstd, weight, partial.data()); });
}

}  // namespace baleen::ops
