#include "train/model_work.h"

#include <algorithm>
#include <utility>

#include "model/family.h"
#include "pipeline/balance.h"

namespace baleen {

std::vector<StageLayers> cut_stages(const ModelConfig& config, std::int64_t sequence_length, int chunks) {
  const auto head = static_cast<double>(config.vocab_size * config.hidden_size);
  const double products = (static_cast<double>(config.matmul_parameters()) - head) / static_cast<double>(config.num_hidden_layers);
  const double block = products + static_cast<double>(sequence_length * config.num_attention_heads * config.head_dim);
  const std::vector<double> costs(static_cast<std::size_t>(config.num_hidden_layers), block);
  std::vector<StageLayers> stages;
  for (const StageRange& range : balance_stages(costs, 0.1 * head, head, chunks)) {
    const bool first = stages.empty(), last = static_cast<int>(stages.size()) + 1 == chunks;
    stages.push_back({range.first_layer, range.layers, first, last});
  }
  return stages;
}

std::vector<StageLayers> stages_of(const std::vector<StageLayers>& all, const PipelinePlace& place) {
  std::vector<StageLayers> own;
  for (std::size_t chunk = static_cast<std::size_t>(place.stage); chunk < all.size(); chunk += static_cast<std::size_t>(place.stages))
    own.push_back(all[chunk]);
  return own;
}

ModelWork::ModelWork(const ModelConfig& config, const std::vector<StageLayers>& layers, const PipelinePlace& place, UnitStorage& units,
                     Sharding& sharding, const TensorParallel& tensor, const RingAttention* ring, ops::Context& context,
                     const StageOptions& options)
    : place_(place), units_(units), sharding_(sharding), tensor_(tensor), ring_(ring), context_(context), width_(config.hidden_size) {
  int first_unit = 0;
  for (const StageLayers& range : layers) {
    stages_.emplace_back(config, units, range, first_unit, options);
    first_unit += stage_unit_count(config, range);
  }
}

void ModelWork::run_chunk_dry(const Stage& stage, const LayerContext& layers, const MicroBatch& batch, bool training, bool halves) {
  const auto boundary = [&](bool exists) {
    return exists ? Tensor(nullptr, units_.options().compute, {tensor_.part_rows(batch.sequences.tokens()), width_}) : Tensor();
  };
  const Tensor in = boundary(!stage.has_embedding()), out = boundary(!stage.has_head());
  const Stage::Loss loss{Tensor(nullptr, DType::f64, {1}), Tensor(nullptr, DType::f32, {1})};
  Sharding::Pass access(sharding_, layers.ops);
  {
    const Arena::Scope scope(layers.saved);
    const Stage::Saved saved = stage.forward(layers, batch, access, in, out);
    if (stage.has_head()) stage.loss(layers, batch, saved, loss.sum, access);
    if (!training) return;
    if (!halves) return stage.backward(layers, batch, saved, loss, access, out, in);
    // What the first half leaves lies behind what forward saved.
    ops::Context keeping{layers.ops.stream, layers.saved};
    const LayerContext kept{keeping, layers.units, layers.saved, layers.tensor, layers.ring};
    const Stage::Deferred deferred = stage.backward_input(kept, batch, saved, loss, access, out, in);
    stage.backward_weight(layers, batch, saved, deferred, loss, access);
  }
}

ModelWork::Memory ModelWork::measure(Device& device, const Sequences& sequences, bool training, bool halves) {
  const auto measuring = device.create_measuring_stream();
  Memory memory;
  for (const Stage& stage : stages_) {
    Arena scratch, saved;
    ops::Context context{*measuring, scratch};
    const Tensor indices(nullptr, DType::i32, {sequences.tokens()});
    run_chunk_dry(stage, {context, units_, saved, tensor_, ring_}, {sequences, indices, indices}, training, halves);
    if (saved.peak() > memory.saved) memory.saved = saved.peak(), memory.saved_by_name = saved.peak_by_name();
    if (scratch.peak() > memory.scratch) memory.scratch = scratch.peak(), memory.scratch_by_name = scratch.peak_by_name();
  }
  return memory;
}

void ModelWork::reserve(Device& device, int slots, std::size_t bytes, std::int64_t tokens) {
  while (static_cast<int>(slots_.size()) < slots) {
    Slot slot;
    slot.memory = device.allocate("activations", bytes);
    slot.saved.bind(slot.memory.data(), slot.memory.bytes());
    Buffer& indices =
        index_memory_.emplace_back(device.allocate("batch and tables", 2 * static_cast<std::size_t>(tokens) * sizeof(std::int32_t)));
    slot.ids = Tensor(indices.data(), DType::i32, {tokens});
    slot.targets = Tensor(indices.as<std::int32_t>() + tokens, DType::i32, {tokens});
    slots_.push_back(std::move(slot));
  }
}

void ModelWork::begin(Pass pass, const Schedule& schedule, const BoundaryPlan& plan, const Shared& shared, Load load) {
  BALEEN_CHECK(plan.saved_slots <= static_cast<int>(slots_.size()), plan.saved_slots, slots_.size());
  pass_ = pass;
  plan_ = &plan;
  shared_ = shared;
  load_ = std::move(load);
  last_micro_batch_.assign(stages_.size(), -1);
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(place_.stage)])
    if (action.compute() && action.last_backward())
      last_micro_batch_[static_cast<std::size_t>(action.chunk / place_.stages)] = action.micro_batch;
  for (Slot& slot : slots_) release(slot);  // of a run that failed
}

ModelWork::Slot& ModelWork::slot(int chunk, int micro_batch) {
  const int index = plan_->saved[plan_->entry(chunk, micro_batch)];
  BALEEN_CHECK(index >= 0, chunk, micro_batch);
  return slots_[static_cast<std::size_t>(index)];
}

void ModelWork::forward(int chunk, int micro_batch, const Tensor& in, const Tensor& out) {
  Slot& own = slot(chunk, micro_batch);
  const Stage& layers_of_chunk = stage(chunk);
  if (layers_of_chunk.has_embedding() || layers_of_chunk.has_head())
    load_(micro_batch, layers_of_chunk.has_embedding() ? own.ids : Tensor(), layers_of_chunk.has_head() ? own.targets : Tensor());
  Sharding::Pass access(sharding_, context_);
  own.forward = layers_of_chunk.forward(layers(own), batch(own), access, in, out);
  if (pass_ == Pass::gradients) return;
  if (layers_of_chunk.has_head()) layers_of_chunk.loss(layers(own), batch(own), own.forward, shared_.loss.sum, access);
  release(own);
}

void ModelWork::announce_backward(int chunk, int micro_batch) {
  sharding_.gradients().begin_micro_step(last_micro_batch_[static_cast<std::size_t>(chunk / place_.stages)] == micro_batch);
}

void ModelWork::backward(int chunk, int micro_batch, const Tensor& d_out, const Tensor& d_in) {
  Slot& own = slot(chunk, micro_batch);
  announce_backward(chunk, micro_batch);
  Sharding::Pass access(sharding_, context_);
  stage(chunk).backward(layers(own), batch(own), own.forward, shared_.loss, access, d_out, d_in);
  release(own);
}

void ModelWork::backward_input(int chunk, int micro_batch, const Tensor& d_out, const Tensor& d_in) {
  Slot& own = slot(chunk, micro_batch);
  ops::Context keeping{context_.stream, own.saved};
  Sharding::Pass access(sharding_, context_);
  own.deferred =
      stage(chunk).backward_input({keeping, units_, own.saved, tensor_, ring_}, batch(own), own.forward, shared_.loss, access, d_out, d_in);
}

void ModelWork::backward_weight(int chunk, int micro_batch) {
  Slot& own = slot(chunk, micro_batch);
  announce_backward(chunk, micro_batch);
  Sharding::Pass access(sharding_, context_);
  stage(chunk).backward_weight(layers(own), batch(own), own.forward, own.deferred, shared_.loss, access);
  release(own);
}

}  // namespace baleen
