// The layers of one rank as a pipeline's schedule drives them; without a pipeline the schedule is one chunk's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/stage.h"
#include "pipeline/executor.h"
#include "sharding/sharding.h"

namespace baleen {

// Which chunks of the model a rank has: stage, stage + stages, stage + 2 · stages, … of stages · virtual_stages.
struct PipelinePlace {
  int stage = 0, stages = 1, virtual_stages = 1;
};

// All chunks of the model, cut so that they cost the same: a block by its products and its attention over `sequence_length` tokens, the
// head by its product, the embedding (look-up, gradient and update) as a tenth of that.
std::vector<StageLayers> cut_stages(const ModelConfig& config, std::int64_t sequence_length, int chunks);
// Those of a place, from its first chunk.
std::vector<StageLayers> stages_of(const std::vector<StageLayers>& all, const PipelinePlace& place);

class ModelWork final : public StageWork {
 public:
  enum class Pass { gradients, loss };
  // What every micro-batch shares: positions and rotary tables; where the loss goes.
  struct Shared {
    Sequences sequences;
    Stage::Loss loss;
  };
  // Fills the ids or the targets, or both, of a micro-batch; what it need not fill is undefined.
  using Load = std::function<void(int micro_batch, const Tensor& ids, const Tensor& targets)>;
  // Bytes by name of what a micro-batch keeps from forward to backward on one chunk, and of the scratch.
  struct Memory {
    std::size_t saved = 0, scratch = 0;
    std::map<std::string, std::size_t> saved_by_name, scratch_by_name;
  };

  // Everything but `config` must outlive it. Units are laid out by stage_units(config, layers, …), `layers` being the rank's chunks.
  ModelWork(const ModelConfig& config, const std::vector<StageLayers>& layers, const PipelinePlace& place, UnitStorage& units,
            Sharding& sharding, const TensorParallel& tensor, const RingAttention* ring, ops::Context& context,
            const StageOptions& options);

  // A dry run of every pass that the schedule kind has (`halves`: backward in two), on a micro-batch of this geometry.
  Memory measure(Device& device, const Sequences& sequences, bool training, bool halves);
  // Makes room for so many micro-batches in flight of `bytes` each, with their ids and targets.
  void reserve(Device& device, int slots, std::size_t bytes, std::int64_t tokens);

  // Before an executor's run of this schedule.
  void begin(Pass pass, const Schedule& schedule, const BoundaryPlan& plan, const Shared& shared, Load load);

  void forward(int chunk, int micro_batch, const Tensor& in, const Tensor& out) override;
  void backward(int chunk, int micro_batch, const Tensor& d_out, const Tensor& d_in) override;
  void backward_input(int chunk, int micro_batch, const Tensor& d_out, const Tensor& d_in) override;
  void backward_weight(int chunk, int micro_batch) override;

 private:
  // A micro-batch in flight on a chunk.
  struct Slot {
    Buffer memory;
    Arena saved;
    Tensor ids, targets;
    Stage::Saved forward;
    Stage::Deferred deferred;
  };
  Slot& slot(int chunk, int micro_batch);
  const Stage& stage(int chunk) const { return stages_[static_cast<std::size_t>(chunk / place_.stages)]; }
  MicroBatch batch(const Slot& slot) const { return {shared_.sequences, slot.ids, slot.targets}; }
  LayerContext layers(Slot& slot) { return {context_, units_, slot.saved, tensor_, ring_}; }
  void announce_backward(int chunk, int micro_batch);
  void run_chunk_dry(const Stage& stage, const LayerContext& layers, const MicroBatch& batch, bool training, bool halves);
  void release(Slot& slot) { slot.saved.release(0); }

  PipelinePlace place_;
  UnitStorage& units_;
  Sharding& sharding_;
  TensorParallel tensor_;
  const RingAttention* ring_;
  ops::Context& context_;
  std::vector<Stage> stages_;
  std::int64_t width_;
  std::vector<Slot> slots_;
  std::vector<Buffer> index_memory_;
  // Of the run at hand.
  Pass pass_ = Pass::gradients;
  const BoundaryPlan* plan_ = nullptr;
  std::vector<int> last_micro_batch_;  // by chunk of this rank: whose backward ends last
  Shared shared_;
  Load load_;
};

}  // namespace baleen
