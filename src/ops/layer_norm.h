// Layer normalisation (J. L. Ba, J. R. Kiros, G. E. Hinton, arXiv 1607.06450), fused with the residual addition before it:
//   residual = x + delta;  out = (residual - mean) · rstd · weight + bias;  rstd = 1 / sqrt(variance + eps).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void layer_norm_forward(const Tensor& out, const Tensor& residual, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& delta, const Tensor& weight, const Tensor& bias, float eps);
void layer_norm_backward_input(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& mean,
                               const Tensor& rstd, const Tensor& weight);
void layer_norm_backward_weight(const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd);
}  // namespace cpu
namespace gpu {
void layer_norm_forward(Stream& stream, const Tensor& out, const Tensor& residual, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& delta, const Tensor& weight, const Tensor& bias, float eps);
void layer_norm_backward_input(Stream& stream, const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x,
                               const Tensor& mean, const Tensor& rstd, const Tensor& weight);
std::size_t layer_norm_backward_workspace(std::int64_t rows, std::int64_t columns);
void layer_norm_backward(Stream& stream, const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out,
                         const Tensor& d_residual, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                         void* workspace);
std::size_t layer_norm_backward_weight_workspace(std::int64_t rows, std::int64_t columns);
void layer_norm_backward_weight(Stream& stream, const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out, const Tensor& x,
                                const Tensor& mean, const Tensor& rstd, void* workspace);
}  // namespace gpu

// out, residual, x, delta [N, C]; mean, rstd [N] fp32; weight, bias [C]. Without delta (undefined) residual is not written and x is
// normalised; residual may be x. The variance is the mean of squared distances from the mean, in a second pass over the row.
inline void layer_norm_forward(Context& context, const Tensor& out, const Tensor& residual, const Tensor& mean, const Tensor& rstd,
                               const Tensor& x, const Tensor& delta, const Tensor& weight, const Tensor& bias, float eps) {
  dispatch(
      context, [&] { cpu::layer_norm_forward(out, residual, mean, rstd, x, delta, weight, bias, eps); },
      [&] { gpu::layer_norm_forward(context.stream, out, residual, mean, rstd, x, delta, weight, bias, eps); });
}

// d_x [N, C] = d_residual (undefined: 0; may be d_x itself) + the gradient through the norm of x [N, C], given d_out [N, C].
inline void layer_norm_backward_input(Context& context, const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x,
                                      const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  dispatch(
      context, [&] { cpu::layer_norm_backward_input(d_x, d_out, d_residual, x, mean, rstd, weight); },
      [&] { gpu::layer_norm_backward_input(context.stream, d_x, d_out, d_residual, x, mean, rstd, weight); });
}

// d_weight [C] += Σ over N of d_out · (x - mean) · rstd, d_bias [C] += Σ over N of d_out, in an order that does not depend on the number of
// threads. Both are fp32, or bf16 where x is: then summed in fp32 and rounded once.
inline void layer_norm_backward_weight(Context& context, const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out, const Tensor& x,
                                       const Tensor& mean, const Tensor& rstd) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial = workspace(context, "norm weight gradient workspace", no_bytes,
                                   [&] { return gpu::layer_norm_backward_weight_workspace(rstd.elements(), d_weight.elements()); });
  dispatch(
      context, [&] { cpu::layer_norm_backward_weight(d_weight, d_bias, d_out, x, mean, rstd); },
      [&] { gpu::layer_norm_backward_weight(context.stream, d_weight, d_bias, d_out, x, mean, rstd, partial.data()); });
}

// Both of the above at once: on the GPU one pass over d_out and x instead of two.
inline void layer_norm_backward(Context& context, const Tensor& d_x, const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out,
                                const Tensor& d_residual, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial = workspace(context, "norm gradient workspace", no_bytes,
                                   [&] { return gpu::layer_norm_backward_workspace(rstd.elements(), d_weight.elements()); });
  dispatch(
      context,
      [&] {
        cpu::layer_norm_backward_weight(d_weight, d_bias, d_out, x, mean, rstd);
        cpu::layer_norm_backward_input(d_x, d_out, d_residual, x, mean, rstd, weight);
      },
      [&] { gpu::layer_norm_backward(context.stream, d_x, d_weight, d_bias, d_out, d_residual, x, mean, rstd, weight, partial.data()); });
}

}  // namespace baleen::ops
