// A run of layers with forward and backward: the unit that a pipeline schedule moves. Today the run is the whole model.
#pragma once

#include <functional>
#include <vector>

#include "layers/embedding.h"
#include "layers/head_loss.h"
#include "layers/transformer_block.h"
#include "model/model_config.h"

namespace baleen {

// One micro-batch on the device. ids, targets [N] int32, N = batch · length; targets may be ops::ignore_index.
struct MicroBatch {
  Sequences sequences;
  Tensor ids, targets;
};

class Stage {
 public:
  // What backward needs of one micro-batch; its tensors live in the context's `saved` arena.
  struct Saved {
    std::vector<TransformerBlock::Saved> blocks;
    Norm::Saved final_norm;
  };
  // Called when the gradients of a unit are complete for this micro-batch.
  using UnitComplete = std::function<void(int unit)>;

  // `units` must be laid out by model_units(config) and outlive the stage.
  Stage(const ModelConfig& config, const UnitStorage& units);

  Saved forward(const LayerContext& context, const MicroBatch& batch) const;
  // loss_sum [1] fp64 += Σ token losses of a forward pass, without gradients.
  void loss(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum) const;
  // Loss and every gradient (added to the units'). gradient_scale [1] fp32 multiplies the gradient of each token's loss.
  void loss_and_backward(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum,
                         const Tensor& gradient_scale, const UnitComplete& complete) const;

  // logits [V] of the last of the next tokens of one sequence, whose keys and values go into `caches` (one a block).
  void next_logits(const LayerContext& context, const MicroBatch& batch, std::vector<KvCache>& caches, const Tensor& logits) const;

 private:
  std::int64_t width_;
  Embedding embedding_;
  std::vector<TransformerBlock> blocks_;
  Norm final_norm_;
  HeadLoss head_;
  int head_unit_;
};

}  // namespace baleen
