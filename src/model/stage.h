// A run of layers with forward and backward: what a pipeline schedule moves. Without a pipeline the run is the whole model.
#pragma once

#include <optional>
#include <vector>

#include "layers/embedding.h"
#include "layers/head_loss.h"
#include "layers/transformer_block.h"
#include "model/model_config.h"
#include "model/stage_layers.h"
#include "sharding/unit_access.h"

namespace baleen {

// One micro-batch on the device. ids, targets [N] int32, N = batch · length; targets may be ops::ignore_index, ids ops::absent_id where
// ranks share the embedding's table.
struct MicroBatch {
  Sequences sequences;
  Tensor ids, targets;
};

struct StageOptions {
  Recompute recompute = Recompute::none;
  std::int64_t head_chunks = 0;  // of a micro-batch's logits; 0: see layers/head_loss.h
};

class Stage {
 public:
  // What backward needs of one micro-batch; its tensors live in the context's `saved` arena.
  struct Saved {
    std::vector<TransformerBlock::Saved> blocks;
    Norm::Saved final_norm;
  };
  // What the last stage makes of its output: loss_sum [1] fp64 += Σ token losses; gradient_scale [1] fp32 multiplies the gradient of each.
  struct Loss {
    Tensor sum, gradient_scale;
  };
  // What backward_input leaves for backward_weight, in the scratch.
  struct Deferred {
    std::vector<TransformerBlock::Saved> blocks;  // as restored, from the last
    std::vector<TransformerBlock::Gradients> gradients;
    Tensor d_final_norm, d_embedding;  // [n, C]; undefined without head, without embedding
  };

  // `units` must be laid out by stage_units(config, {…, range, …}) and outlive the stage; `first_unit`: the first of this range.
  Stage(const ModelConfig& config, const UnitStorage& units, const StageLayers& range, int first_unit, const StageOptions& options);
  // The whole model.
  Stage(const ModelConfig& config, const UnitStorage& units, Recompute recompute = Recompute::none)
      : Stage(config, units, StageLayers::whole(config), 0, StageOptions{recompute}) {}

  bool has_embedding() const { return embedding_.has_value(); }
  bool has_head() const { return head_.has_value(); }

  // Each pass tells `access` which units it reads and adds gradients to, in the order of its work. `in` [n, C]: the residual stream of the
  // stage before, which must live as long as what is saved; `out` [n, C]: this one's. Undefined where there is no stage before or behind.
  Saved forward(const LayerContext& context, const MicroBatch& batch, UnitAccess& access, const Tensor& in = Tensor(),
                const Tensor& out = Tensor()) const;
  // The loss of a forward pass over the stage with the head, without gradients.
  void loss(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Tensor& loss_sum, UnitAccess& access) const;
  // The loss, where the stage has the head, and every gradient (added to the units'). d_out [n, C]: of `out`; d_in [n, C]: of `in`.
  void backward(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Loss& loss, UnitAccess& access,
                const Tensor& d_out = Tensor(), const Tensor& d_in = Tensor()) const;
  // The same in two halves. What the first leaves in the scratch and d_out must live until the second.
  Deferred backward_input(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Loss& loss, UnitAccess& access,
                          const Tensor& d_out, const Tensor& d_in) const;
  void backward_weight(const LayerContext& context, const MicroBatch& batch, const Saved& saved, const Deferred& deferred, const Loss& loss,
                       UnitAccess& access) const;

  // Over units that are whole: logits [V] of the last of the next tokens of one sequence, whose keys and values go into `caches` (one a
  // block).
  void next_logits(const LayerContext& context, const MicroBatch& batch, std::vector<KvCache>& caches, const Tensor& logits) const;

 private:
  std::int64_t width_;
  Recompute recompute_;
  std::optional<Embedding> embedding_;
  std::vector<TransformerBlock> blocks_;
  std::optional<Norm> final_norm_;
  std::optional<HeadLoss> head_;
  // Units: of the embedding, the first block, the final norm, and the head's weight (the final norm's, or the embedding's where they are
  // tied).
  int embedding_unit_, first_block_unit_, last_unit_, head_unit_;

  int block_unit(std::size_t block) const { return first_block_unit_ + static_cast<int>(block); }
  bool tied() const { return head_unit_ != last_unit_; }
  // The buffers between the sub-layers, in the scratch.
  BlockDeltas block_deltas(const LayerContext& context, std::int64_t rows, Recompute recompute) const;
  // The head's units, whose weights are needed together; `next` is needed after them.
  void head_needed(UnitAccess& access, int next) const;
  void head_done(UnitAccess& access) const;
};

}  // namespace baleen
