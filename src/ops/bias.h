// The bias of a linear layer: added to the columns of its output, and its gradient, the sum over the rows.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void bias_add(const Tensor& y, std::int64_t row_stride, const Tensor& bias);
void bias_backward(const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride);
}  // namespace cpu
namespace gpu {
void bias_add(Stream& stream, const Tensor& y, std::int64_t row_stride, const Tensor& bias);
std::size_t bias_backward_workspace(std::int64_t rows, std::int64_t columns);
void bias_backward(Stream& stream, const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride, void* workspace);
}  // namespace gpu

// y [N, O] += bias [O], in place; y's rows lie row_stride elements apart (a slice of fused QKV).
inline void bias_add(Context& context, const Tensor& y, std::int64_t row_stride, const Tensor& bias) {
  dispatch(context, [&] { cpu::bias_add(y, row_stride, bias); }, [&] { gpu::bias_add(context.stream, y, row_stride, bias); });
}

// d_bias [O] fp32, or bf16 where d_y is, += Σ over N of d_y [N, O], summed in fp32 in an order without regard to threads, and rounded once.
inline void bias_backward(Context& context, const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial =
      workspace(context, "bias gradient workspace", no_bytes, [&] { return gpu::bias_backward_workspace(d_y.size(0), d_y.size(1)); });
  dispatch(
      context, [&] { cpu::bias_backward(d_bias, d_y, row_stride); },
      [&] { gpu::bias_backward(context.stream, d_bias, d_y, row_stride, partial.data()); });
}

}  // namespace baleen::ops
