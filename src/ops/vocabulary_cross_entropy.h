// Softmax cross-entropy over a vocabulary that several ranks share: each has the logits of a range of it, and what they exchange is three
// numbers a row (M. Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3).
#pragma once

#include "ops/context.h"

namespace baleen::ops {

// Of a row of the rank's logits: the greatest, Σ exp(logit - greatest), and the target's logit (0 where another rank has it).
inline constexpr std::int64_t vocabulary_statistics = 3;

namespace cpu {
void vocabulary_cross_entropy_statistics(const Tensor& statistics, const Tensor& logits, const Tensor& targets, std::int64_t first);
void vocabulary_cross_entropy(const Tensor& loss_sum, const Tensor& logits, const Tensor& statistics, const Tensor& targets,
                              std::int64_t first, const Tensor& gradient_scale);
}  // namespace cpu
namespace gpu {
void vocabulary_cross_entropy_statistics(Stream& stream, const Tensor& statistics, const Tensor& logits, const Tensor& targets,
                                         std::int64_t first, std::int64_t valid);
void vocabulary_cross_entropy(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& statistics, const Tensor& targets,
                              std::int64_t first, std::int64_t valid, const Tensor& gradient_scale, void* workspace);
}  // namespace gpu

// statistics [n, 3] fp32 of logits [n, columns], whose first `valid` columns are those from `first` on of the vocabulary; only a GPU may
// have more columns than that. targets [n] int32 over the whole vocabulary, or ignore_index.
inline void vocabulary_cross_entropy_statistics(Context& context, const Tensor& statistics, const Tensor& logits, const Tensor& targets,
                                                std::int64_t first, std::int64_t valid) {
  dispatch(
      context,
      [&] {
        BALEEN_CHECK(valid == logits.size(1), valid, logits.size(1));
        cpu::vocabulary_cross_entropy_statistics(statistics, logits, targets, first);
      },
      [&] { gpu::vocabulary_cross_entropy_statistics(context.stream, statistics, logits, targets, first, valid); });
}
// loss_sum [1] fp64 += Σ token losses, from statistics [ranks, n, 3] of every rank; the same bits on each. Where gradient_scale [1] fp32 is
// defined, logits become d_logits = gradient_scale · (softmax - one_hot), rows of ignored targets and columns from `valid` on 0.
inline void vocabulary_cross_entropy(Context& context, const Tensor& loss_sum, const Tensor& logits, const Tensor& statistics,
                                     const Tensor& targets, std::int64_t first, std::int64_t valid, const Tensor& gradient_scale) {
  const Arena::Scope scope(context.scratch);
  const Tensor losses =
      workspace(context, "cross-entropy workspace", no_bytes, [&] { return static_cast<std::size_t>(logits.size(0)) * sizeof(float); });
  dispatch(
      context, [&] { cpu::vocabulary_cross_entropy(loss_sum, logits, statistics, targets, first, gradient_scale); },
      [&] {
        gpu::vocabulary_cross_entropy(context.stream, loss_sum, logits, statistics, targets, first, valid, gradient_scale, losses.data());
      });
}

}  // namespace baleen::ops
