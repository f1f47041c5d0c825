// A product with GPT-2's activation behind it, and the product before its gradient: on the GPU each is one kernel where the library has it.
#pragma once

#include "ops/gelu.h"
#include "ops/matmul.h"

namespace baleen::ops {

namespace gpu {
// False, with nothing enqueued, where the library has no such kernel for the shape.
bool matmul_gelu(Stream& stream, const Matrix& out, const Matrix& before, const Matrix& a, const Matrix& b, const Tensor& bias,
                 void* workspace);
bool matmul_gelu_backward(Stream& stream, const Matrix& out, const Matrix& a, const Matrix& b, const Matrix& before, void* workspace);
}  // namespace gpu

// before[M, N] = a[M, K] · b[K, N] + bias[N];  out = gelu(before). out and before are whole tensors; neither may be a or b.
inline void matmul_gelu(Context& context, const Tensor& out, const Tensor& before, const Matrix& a, const Matrix& b, const Tensor& bias) {
  if (context.stream.kind() == DeviceKind::gpu) {
    const Arena::Scope scope(context.scratch);
    const Tensor space = workspace(context, "matmul workspace", no_bytes, [] { return gpu::matmul_workspace; });
    bool done = context.stream.measuring();
    dispatch(context, [] {}, [&] { done = gpu::matmul_gelu(context.stream, out, before, a, b, bias, space.data()); });
    if (done) return;
  }
  matmul_with_bias(context, before, a, b, bias);
  gelu_forward(context, out, before);
}

// out[M, N] = (a[M, K] · b[K, N]) ∘ gelu'(before[M, N]).
inline void matmul_gelu_backward(Context& context, const Tensor& out, const Matrix& a, const Matrix& b, const Tensor& before) {
  if (context.stream.kind() == DeviceKind::gpu) {
    const Arena::Scope scope(context.scratch);
    const Tensor space = workspace(context, "matmul workspace", no_bytes, [] { return gpu::matmul_workspace; });
    bool done = context.stream.measuring();
    dispatch(context, [] {}, [&] { done = gpu::matmul_gelu_backward(context.stream, out, a, b, before, space.data()); });
    if (done) return;
  }
  matmul(context, out, a, b);
  gelu_backward(context, out, out, before);
}

}  // namespace baleen::ops
