// The products beside Llama's gated activation: on the GPU each is one kernel with the activation, or its gradient, where the build has
// such kernels and the shape fits them.
#pragma once

#include "ops/matmul.h"
#include "ops/swiglu.h"

namespace baleen::ops {

namespace gpu {
// False, with nothing enqueued, where there is no such kernel for the shape.
bool matmul_swiglu(Stream& stream, const Tensor& out, const Tensor& gate_up, const Matrix& a, const Matrix& b, void* workspace);
bool matmul_swiglu_backward(Stream& stream, const Tensor& d_gate_up, const Matrix& a, const Matrix& b, const Tensor& gate_up);
}  // namespace gpu

// gate_up[M, 2F] = a[M, K] · b[K, 2F];  out[M, F] = silu(gate) ∘ up. None of them may overlap.
inline void matmul_swiglu(Context& context, const Tensor& out, const Tensor& gate_up, const Matrix& a, const Matrix& b) {
  if (context.stream.kind() == DeviceKind::gpu) {
    const Arena::Scope scope(context.scratch);
    const Tensor space = workspace(context, "matmul workspace", no_bytes, [] { return gpu::matmul_workspace; });
    bool done = context.stream.measuring();
    dispatch(context, [] {}, [&] { done = gpu::matmul_swiglu(context.stream, out, gate_up, a, b, space.data()); });
    if (done) return;
  }
  matmul(context, gate_up, a, b);
  swiglu_forward(context, out, gate_up);
}

// d_gate_up[M, 2F]: the gradient of gate_up[M, 2F] where that of the activation is a[M, K] · b[K, F], which takes `room` [M, F] where one
// kernel cannot do both.
inline void matmul_swiglu_backward(Context& context, const Tensor& d_gate_up, const Tensor& room, const Matrix& a, const Matrix& b,
                                   const Tensor& gate_up) {
  bool done = false;
  if (context.stream.kind() == DeviceKind::gpu)
    dispatch(context, [] {}, [&] { done = gpu::matmul_swiglu_backward(context.stream, d_gate_up, a, b, gate_up); });
  if (done) return;
  matmul(context, room, a, b);
  swiglu_backward(context, d_gate_up, room, gate_up);
}

}  // namespace baleen::ops
