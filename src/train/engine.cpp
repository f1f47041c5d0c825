#include "train/engine.h"

#include <algorithm>

#include "model/family.h"
#include "model/rope_table.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/threads.h"

namespace baleen {
namespace {

StorageOptions storage_options(const EngineOptions& options, const DataGroup& group) {
  return {.kind = options.storage,
          .compute = options.compute,
          .state = options.state,
          .stage = options.zero,
          .shards = group.reduce.size(),
          .shard = group.reduce.rank(),
          .offload = options.offload,
          .ends_share = !options.model.tie_word_embeddings};
}

TensorRank tensor_rank(const EngineOptions& options, const EngineGroups& groups) {
  if (groups.tensor == nullptr) return {};
  return {groups.tensor->rank(), groups.tensor->size(), options.sequence_parallel};
}

}  // namespace

Engine::Engine(const EngineOptions& options, const EngineGroups& groups)
    : options_(options),
      groups_(groups),
      device_(options.device != nullptr ? options.device : create_cpu_device()),
      stream_(device_->create_stream()),
      units_(*device_, stage_units(options.model, {StageLayers::whole(options.model)}, tensor_rank(options, groups)), storage_options(options, groups.data)),
      stage_(options.model, units_, options.recompute),
      sharding_(groups.data, units_, options.reduction),
      context_{*stream_, scratch_} {
  if (groups.tensor != nullptr) tensor_ = TensorParallel(*groups.tensor, options.sequence_parallel, sharding_.waits());
  const ParameterDescription& table = units_.parameter(units_.find(family_of(options.model).embedding_table));
  if (!table.held_whole()) first_id_ = table.held.begin[0];
  ids_here_ = table.held_shape()[0];
  if (options.threads > 0) ops::set_threads(options.threads);
  plan_memory();

  // The micro-batch and the tables live as long as the engine.
  const std::int64_t batch = options.micro_batch_size, length = options.sequence_length, tokens = batch * length;
  const RopeTable rotary = make_rope_table(options.model, length);
  const std::int64_t half = rope_columns(options.model);
  Arena fixed;
  const auto layout = [&] {
    micro_batch_.sequences = {batch, length, allocate(fixed, "positions", DType::i32, {tokens}),
                              allocate(fixed, "rotary cosines", DType::f32, {length, half}),
                              allocate(fixed, "rotary sines", DType::f32, {length, half}), Tensor()};
    micro_batch_.ids = allocate(fixed, "ids", DType::i32, {tokens});
    micro_batch_.targets = allocate(fixed, "targets", DType::i32, {tokens});
    loss_sum_ = allocate(fixed, "loss sum", DType::f64, {1});
    gradient_scale_ = allocate(fixed, "gradient scale", DType::f32, {1});
  };
  layout();
  fixed_memory_ = device_->allocate("batch and tables", fixed.peak());
  fixed.release(0);
  fixed.bind(fixed_memory_.data(), fixed_memory_.bytes());
  layout();
  stream_->copy(micro_batch_.sequences.cosines.data(), rotary.cosines.data(), rotary.cosines.size() * sizeof(float));
  stream_->copy(micro_batch_.sequences.sines.data(), rotary.sines.data(), rotary.sines.size() * sizeof(float));
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(length));
  stream_->copy(micro_batch_.sequences.positions.data(), positions.data(), positions.size() * sizeof(std::int32_t));
  stream_->synchronize();
}

void Engine::plan_memory() {
  const auto measuring = device_->create_measuring_stream();
  Arena scratch, saved;
  ops::Context context{*measuring, scratch};
  const LayerContext layers{context, units_, saved, tensor_};
  const std::int64_t batch = options_.micro_batch_size, length = options_.sequence_length, tokens = batch * length;
  micro_batch_.sequences.batch = batch;
  micro_batch_.sequences.length = length;
  micro_batch_.ids = micro_batch_.targets = Tensor(nullptr, DType::i32, {tokens});
  if (options_.storage == StorageKind::training) run_micro_batch(Pass::gradients, layers);
  run_micro_batch(Pass::loss, layers);

  saved_memory_ = device_->allocate("activations", saved.peak());
  scratch_memory_ = device_->allocate("scratch", scratch.peak());
  saved_.bind(saved_memory_.data(), saved_memory_.bytes());
  scratch_.bind(scratch_memory_.data(), scratch_memory_.bytes());
  for (const auto& [name, bytes] : saved.peak_by_name()) planned_["activations: " + name] += bytes;
  for (const auto& [name, bytes] : scratch.peak_by_name()) planned_["scratch: " + name] += bytes;
}

std::map<std::string, std::size_t> Engine::named_allocations() const {
  std::map<std::string, std::size_t> all = device_->allocations();
  all.erase("activations");
  all.erase("scratch");
  all.insert(planned_.begin(), planned_.end());
  return all;
}

void Engine::run_micro_batch(Pass pass, const LayerContext& layers) {
  const Arena::Scope scope(layers.saved);
  Sharding::Pass access(sharding_, layers.ops);
  const Stage::Saved saved = stage_.forward(layers, micro_batch_, access);
  if (pass == Pass::gradients)
    stage_.backward(layers, micro_batch_, saved, {loss_sum_, gradient_scale_}, access);
  else
    stage_.loss(layers, micro_batch_, saved, loss_sum_, access);
}

void Engine::load_micro_batch(const HostBatch& batch, std::int64_t first) {
  const std::int64_t length = options_.sequence_length, elements = options_.micro_batch_size * length;
  const std::int64_t begin = first * length, count = std::clamp<std::int64_t>(batch.sequences * length - begin, 0, elements);
  const bool as_they_are = count == elements && !tensor_.active();
  if (!as_they_are) {
    local_ids_.assign(static_cast<std::size_t>(elements), 0);
    std::copy_n(batch.inputs.begin() + (count > 0 ? begin : 0), count, local_ids_.begin());
  }
  if (tensor_.active())
    for (std::int32_t& id : local_ids_) {
      const std::int64_t row = id - first_id_;
      id = row >= 0 && row < ids_here_ ? static_cast<std::int32_t>(row) : ops::absent_id;
    }
  const std::int32_t* const ids = as_they_are ? batch.inputs.data() + begin : local_ids_.data();
  stream_->copy(micro_batch_.ids.data(), ids, static_cast<std::size_t>(elements) * sizeof(std::int32_t));
  if (count > 0) stream_->copy(micro_batch_.targets.data(), batch.targets.data() + begin, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  if (count == elements) return;
  const std::vector<std::int32_t> ignored(static_cast<std::size_t>(elements - count), ops::ignore_index);
  stream_->copy(micro_batch_.targets.rows(count, elements - count).data(), ignored.data(), ignored.size() * sizeof(std::int32_t));
  stream_->synchronize();
}

double Engine::counted_loss() {
  double loss_sum = 0;
  stream_->copy(&loss_sum, loss_sum_.data(), sizeof loss_sum);
  stream_->synchronize();
  return groups_.data.counts_losses ? loss_sum : 0;
}

void Engine::enqueue_gradients(const HostBatch& batch, double valid_tokens) {
  BALEEN_CHECK(batch.sequences % options_.micro_batch_size == 0, batch.sequences, options_.micro_batch_size);
  const double share = options_.reduction == ReduceOp::avg ? groups_.data.batch.size() : 1;
  const float scale = valid_tokens > 0 ? static_cast<float>(share / valid_tokens) : 0.0f;
  GradientReduction& reduction = sharding_.gradients();
  reduction.begin_step(*stream_);
  stream_->fill_zero(loss_sum_.data(), loss_sum_.bytes());
  stream_->copy(gradient_scale_.data(), &scale, sizeof scale);
  for (std::int64_t first = 0; first < batch.sequences; first += options_.micro_batch_size) {
    reduction.begin_micro_step(first + options_.micro_batch_size == batch.sequences);
    load_micro_batch(batch, first);
    run_micro_batch(Pass::gradients, layers());
  }
  reduction.wait(context_);
  if (!groups_.data.counts_losses) stream_->fill_zero(loss_sum_.data(), loss_sum_.bytes());
}

double Engine::gradients(const HostBatch& batch, double valid_tokens) {
  enqueue_gradients(batch, valid_tokens);
  return counted_loss();
}

double Engine::loss(const HostBatch& batch, std::int64_t micro_steps) {
  stream_->fill_zero(loss_sum_.data(), loss_sum_.bytes());
  for (std::int64_t step = 0; step < micro_steps; ++step) {
    load_micro_batch(batch, step * options_.micro_batch_size);
    run_micro_batch(Pass::loss, layers());
  }
  return counted_loss();
}

}  // namespace baleen
