// Softmax cross-entropy on a chunk of logits, and its gradient in their place.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

inline constexpr std::int32_t ignore_index = -100;  // a target without loss and without gradient

namespace cpu {
void cross_entropy_forward(const Tensor& loss_sum, const Tensor& logits, const Tensor& targets);
std::size_t cross_entropy_workspace(const Tensor& logits);
void cross_entropy_forward_backward(const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, const Tensor& gradient_scale,
                                    void* workspace);
}  // namespace cpu
namespace gpu {
std::size_t cross_entropy_workspace(std::int64_t rows);
void cross_entropy_forward(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, std::int64_t vocabulary,
                           void* workspace);
void cross_entropy_forward_backward(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                                    const Tensor& gradient_scale, std::int64_t vocabulary, void* workspace);
}  // namespace gpu

// loss_sum [1] fp64 += Σ over the valid targets of -log softmax(logits)[target] (token losses in fp32, summed in fp64 in row order on
// the CPU, in an order that depends on n alone on the GPU). logits [n, V], targets [n] int32 in [0, V) or ignore_index. The GPU cannot
// report another target: its loss and gradients become NaN.
// `vocabulary`, on the GPU alone: only so many columns are logits; those behind, which fill rows up to a size that products like, are not
// looked at, and have the gradient 0. 0: all columns.
inline void cross_entropy_forward(Context& context, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                                  std::int64_t vocabulary = 0) {
  const Arena::Scope scope(context.scratch);
  const Tensor losses =
      workspace(context, "cross-entropy workspace", no_bytes, [&] { return gpu::cross_entropy_workspace(logits.size(0)); });
  dispatch(
      context,
      [&] {
        BALEEN_CHECK(vocabulary == 0 || vocabulary == logits.size(1), vocabulary, logits.size(1));
        cpu::cross_entropy_forward(loss_sum, logits, targets);
      },
      [&] { gpu::cross_entropy_forward(context.stream, loss_sum, logits, targets, vocabulary, losses.data()); });
}
// The same, and logits become d_logits = gradient_scale · (softmax - one_hot), rows of ignored targets 0. gradient_scale [1] fp32 is one
// over the number of valid targets of the global batch.
inline void cross_entropy_forward_backward(Context& context, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                                           const Tensor& gradient_scale, std::int64_t vocabulary = 0) {
  const Arena::Scope scope(context.scratch);
  const Tensor space = workspace(
      context, "cross-entropy workspace", [&] { return cpu::cross_entropy_workspace(logits); },
      [&] { return gpu::cross_entropy_workspace(logits.size(0)); });
  dispatch(
      context,
      [&] {
        BALEEN_CHECK(vocabulary == 0 || vocabulary == logits.size(1), vocabulary, logits.size(1));
        cpu::cross_entropy_forward_backward(loss_sum, logits, targets, gradient_scale, space.data());
      },
      [&] { gpu::cross_entropy_forward_backward(context.stream, loss_sum, logits, targets, gradient_scale, vocabulary, space.data()); });
}

}  // namespace baleen::ops
