// The gated activation of Llama's MLP: out = silu(gate) · up (N. Shazeer, "GLU variants improve Transformer", arXiv 2002.05202).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void swiglu_forward(const Tensor& out, const Tensor& gate_up);
void swiglu_backward(const Tensor& d_gate_up, const Tensor& d_out, const Tensor& gate_up);
}  // namespace cpu
namespace gpu {
void swiglu_forward(Stream& stream, const Tensor& out, const Tensor& gate_up);
void swiglu_backward(Stream& stream, const Tensor& d_gate_up, const Tensor& d_out, const Tensor& gate_up);
}  // namespace gpu

// out [N, F]; gate_up [N, 2F]: the gate's F columns, then up's.
inline void swiglu_forward(Context& context, const Tensor& out, const Tensor& gate_up) {
  dispatch(context, [&] { cpu::swiglu_forward(out, gate_up); }, [&] { gpu::swiglu_forward(context.stream, out, gate_up); });
}
// d_gate_up [N, 2F] is written; it may not be gate_up.
inline void swiglu_backward(Context& context, const Tensor& d_gate_up, const Tensor& d_out, const Tensor& gate_up) {
  dispatch(
      context, [&] { cpu::swiglu_backward(d_gate_up, d_out, gate_up); },
      [&] { gpu::swiglu_backward(context.stream, d_gate_up, d_out, gate_up); });
}

}  // namespace baleen::ops
