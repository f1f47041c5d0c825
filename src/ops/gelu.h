// GPT-2's activation, the tanh form of GELU ("gelu_new" in config.json; D. Hendrycks, K. Gimpel, arXiv 1606.08415):
//   gelu(x) = ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void gelu_forward(const Tensor& out, const Tensor& x);
void gelu_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& x);
}  // namespace cpu
namespace gpu {
void gelu_forward(Stream& stream, const Tensor& out, const Tensor& x);
void gelu_backward(Stream& stream, const Tensor& d_x, const Tensor& d_out, const Tensor& x);
}  // namespace gpu

// out, x of one shape; out may be x.
inline void gelu_forward(Context& context, const Tensor& out, const Tensor& x) {
  dispatch(context, [&] { cpu::gelu_forward(out, x); }, [&] { gpu::gelu_forward(context.stream, out, x); });
}
// d_x = d_out · gelu'(x), all of one shape; d_x may be d_out.
inline void gelu_backward(Context& context, const Tensor& d_x, const Tensor& d_out, const Tensor& x) {
  dispatch(context, [&] { cpu::gelu_backward(d_x, d_out, x); }, [&] { gpu::gelu_backward(context.stream, d_x, d_out, x); });
}

}  // namespace baleen::ops
