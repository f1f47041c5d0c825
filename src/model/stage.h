// A run of layers with forward and backward: the unit that a pipeline schedule moves. Today the run is the whole model.
#pragma once

#include <vector>

#include "layers/embedding.h"
#include "layers/head_loss.h"
#include "layers/transformer_block.h"
#include "model/model_config.h"
#include "sharding/unit_access.h"

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
  // `units` must be laid out by model_units(config) and outlive the stage.
  Stage(const ModelConfig& config, const UnitStorage& units, Recompute recompute = Recompute::none);

  // Each pass tells `access` which units it reads and adds gradients to, in the order of its work.
  Saved forward(const LayerContext& context, const MicroBatch& batch, UnitAccess& access) const;
  // loss_sum [1] fp64 += Σ token losses of a forward pass, without gradients.
  void loss(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum, UnitAccess& access) const;
  // Loss and every gradient (added to the units'). gradient_scale [1] fp32 multiplies the gradient of each token's loss.
  void loss_and_backward(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum,
                         const Tensor& gradient_scale, UnitAccess& access) const;

  // Over units that are whole: logits [V] of the last of the next tokens of one sequence, whose keys and values go into `caches` (one a
  // block).
  void next_logits(const LayerContext& context, const MicroBatch& batch, std::vector<KvCache>& caches, const Tensor& logits) const;

 private:
  std::int64_t width_;
  Recompute recompute_;
  Embedding embedding_;
  std::vector<TransformerBlock> blocks_;
  Norm final_norm_;
  HeadLoss head_;
  // The unit of the final norm, and that of the head's weight: the same, or the embedding's where they are tied.
  int last_unit_, head_unit_;

  // The buffers between the sub-layers, in the scratch.
  BlockDeltas block_deltas(const LayerContext& context, std::int64_t tokens, Recompute recompute) const;
  // The head's units, whose weights are needed together; `next` is needed after them.
  void head_needed(UnitAccess& access, int next) const;
  void head_done(UnitAccess& access) const;
};

}  // namespace baleen
