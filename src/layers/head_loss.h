// The LM head fused with cross-entropy, over chunks of tokens, so that the [N, V] logits never exist as a whole. Ranks of axis tp each have
// the logits of their slice of the vocabulary and exchange three numbers a token.
#pragma once

#include "layers/linear.h"

namespace baleen {

// Which halves of the backward pass a call computes. A chunk's logits serve both at once where the schedule runs them together; where it
// runs them apart (zero-bubble pipelines) each half forms the chunk again.
struct BackwardHalves {
  bool input = true, weight = true;
};

class HeadLoss {
 public:
  // `weight` [V, C] is the embedding table when the head is tied. `chunks`: of a micro-batch's tokens, each rounded up to whole 64 tokens;
  // 0: as few as keep a chunk's logits within a bound.
  HeadLoss(const UnitStorage& units, ParameterId weight, std::int64_t chunks = 0);

  // loss_sum [1] fp64 += Σ token losses over the valid targets.
  void loss(const LayerContext& context, const Tensor& loss_sum, const Tensor& x, const Tensor& targets) const;
  // The same and the chosen halves of backward: d_x is written, the weight's gradient added to. x and d_x are parts of [N, C], targets [N]
  // int32, gradient_scale [1] fp32 (see ops/cross_entropy.h).
  void loss_and_backward(const LayerContext& context, const Tensor& loss_sum, const Tensor& d_x, const Tensor& x, const Tensor& targets,
                         const Tensor& gradient_scale, BackwardHalves halves) const;
  // logits [N, V] of x [N, C], for generation.
  void logits(const LayerContext& context, const Tensor& out, const Tensor& x) const { head_.forward(context, out, x); }

 private:
  // Columns of a chunk's logits. A GPU's products with GPT-2's 50,257 take twice as long as with the next multiple of 64.
  std::int64_t padded_outputs(const LayerContext& context) const;
  std::int64_t chunk_rows(const LayerContext& context, std::int64_t tokens, DType dtype) const;
  std::int64_t automatic_chunks(const LayerContext& context, std::int64_t tokens, DType dtype) const;
  // Of a chunk of logits; gradient_scale undefined: the loss alone.
  void cross_entropy(const LayerContext& context, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                     const Tensor& gradient_scale) const;

  ParameterId weight_;
  Linear head_;
  std::int64_t vocabulary_, first_;  // V, and the first row that this rank has
  std::int64_t chunks_;
};

}  // namespace baleen
