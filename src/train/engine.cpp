#include "train/engine.h"

#include <algorithm>
#include <exception>

#include "model/family.h"
#include "model/rope_table.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/threads.h"

namespace baleen {
namespace {

StorageOptions storage_options(const EngineOptions& options, const EngineGroups& groups) {
  const DataGroup& group = groups.data;
  return {.kind = options.storage,
          .compute = options.compute,
          .state = options.state,
          .gradient = options.gradient,
          .stage = options.zero,
          .shards = group.reduce.size(),
          .shard = group.reduce.rank(),
          .offload = options.offload,
          .keeps_chunks = groups.place.stages > 1,
          .ends_share = !options.model.tie_word_embeddings};
}

std::vector<StageLayers> own_layers(const EngineOptions& options, const EngineGroups& groups) {
  const PipelinePlace& place = groups.place;
  if (place.stages == 1) return {StageLayers::whole(options.model)};
  return stages_of(cut_stages(options.model, options.sequence_length, place.stages * place.virtual_stages), place);
}

TensorRank tensor_rank(const EngineOptions& options, const EngineGroups& groups) {
  if (groups.tensor == nullptr) return {};
  return {groups.tensor->rank(), groups.tensor->size(), options.sequence_parallel};
}

TensorParallel tensor_parallel(const EngineOptions& options, const EngineGroups& groups, CommWaits& waits) {
  return groups.tensor == nullptr ? TensorParallel() : TensorParallel(*groups.tensor, options.sequence_parallel, waits);
}

ZigZag zigzag(const EngineOptions& options, const EngineGroups& groups) {
  return groups.ring == nullptr ? ZigZag(1, 0, options.sequence_length)
                                : ZigZag(groups.ring->size(), groups.ring->rank(), options.sequence_length);
}

std::optional<RingAttention> ring_attention(const EngineGroups& groups, CommWaits& waits) {
  return groups.ring == nullptr ? std::nullopt : std::optional<RingAttention>(std::in_place, *groups.ring, *groups.ring_gradients, &waits);
}

}  // namespace

Engine::Engine(const EngineOptions& options, const EngineGroups& groups)
    : options_(options),
      groups_(groups),
      device_(options.device != nullptr ? options.device : create_cpu_device()),
      stream_(device_->create_stream()),
      layers_(own_layers(options, groups)),
      units_(*device_, stage_units(options.model, layers_, tensor_rank(options, groups)), storage_options(options, groups)),
      sharding_(groups.data, units_, options.reduction),
      tensor_(tensor_parallel(options, groups, sharding_.waits())),
      tokens_(zigzag(options, groups)),
      rows_(tokens_.rows(options.micro_batch_size)),
      ring_(ring_attention(groups, sharding_.waits())),
      context_{*stream_, scratch_},
      work_(options.model, layers_, groups.place, units_, sharding_, tensor_, ring_ ? &*ring_ : nullptr, context_,
            {options.recompute, options.head_chunks}) {
  if (options.threads > 0) ops::set_threads(options.threads);
  if (groups.stages != nullptr) one_clock_ = one_clock(*groups.stages);
  sharding_.waits().set_overlap(options.overlap);
  if (layers_.front().embedding) {
    const ParameterDescription& table = units_.parameter(units_.find(family_of(options.model).embedding_table));
    if (!table.held_whole()) first_id_ = table.held.begin[0];
    ids_here_ = table.held_shape()[0];
  }
  const bool training = options.storage == StorageKind::training;
  Sequences sequences;
  sequences.batch = options.micro_batch_size;
  sequences.length = tokens_.local_length();
  planned_ = work_.measure(*device_, sequences, training, options.schedule == ScheduleKind::zero_bubble && groups.place.stages > 1);
  scratch_memory_ = device_->allocate("scratch", planned_.scratch);
  scratch_.bind(scratch_memory_.data(), scratch_memory_.bytes());
  create_tables();
  executor(training ? options.micro_batches : 1, training);
}

void Engine::create_tables() {
  const std::int64_t batch = options_.micro_batch_size, length = options_.sequence_length;
  const std::vector<std::int32_t> positions = tokens_.positions(batch);
  const RopeTable rotary = make_rope_table(options_.model, length);
  const std::int64_t half = rope_columns(options_.model);
  Arena fixed;
  const auto layout = [&] {
    shared_.sequences = {batch,
                         tokens_.local_length(),
                         allocate(fixed, "positions", DType::i32, {static_cast<std::int64_t>(positions.size())}),
                         allocate(fixed, "rotary cosines", DType::f32, {length, half}),
                         allocate(fixed, "rotary sines", DType::f32, {length, half}),
                         Tensor()};
    shared_.loss.sum = allocate(fixed, "loss sum", DType::f64, {1});
    shared_.loss.gradient_scale = allocate(fixed, "gradient scale", DType::f32, {1});
  };
  layout();
  fixed_memory_ = device_->allocate("batch and tables", fixed.peak());
  fixed.release(0);
  fixed.bind(fixed_memory_.data(), fixed_memory_.bytes());
  layout();
  const Sequences& sequences = shared_.sequences;
  stream_->copy(sequences.cosines.data(), rotary.cosines.data(), rotary.cosines.size() * sizeof(float));
  stream_->copy(sequences.sines.data(), rotary.sines.data(), rotary.sines.size() * sizeof(float));
  stream_->copy(sequences.positions.data(), positions.data(), positions.size() * sizeof(std::int32_t));
  stream_->synchronize();
}

PipelineExecutor& Engine::executor(std::int64_t micro_batches, bool training) {
  std::unique_ptr<PipelineExecutor>& found = executors_[{micro_batches, training}];
  if (found != nullptr) return *found;
  const PipelinePlace& place = groups_.place;
  const int count = static_cast<int>(micro_batches);
  Schedule schedule =
      training ? make_schedule(place.stages > 1 ? options_.schedule : ScheduleKind::one_f_one_b, place.stages, place.virtual_stages, count)
               : make_forward_schedule(place.stages, place.virtual_stages, count);
  const auto tokens = static_cast<std::int64_t>(rows_.size());
  const BoundaryShape shape{tensor_.part_rows(tokens), options_.model.hidden_size, options_.compute};
  const PipelineExecutor::Options executor_options{.prefetch = device_->kind() == DeviceKind::cpu};
  found = std::make_unique<PipelineExecutor>(std::move(schedule), place.stage, shape, *device_, *stream_, groups_.links, executor_options);
  slots_ = std::max(slots_, found->plan().saved_slots);
  work_.reserve(*device_, slots_, planned_.saved, tokens);
  return *found;
}

std::map<std::string, std::size_t> Engine::named_allocations() const {
  std::map<std::string, std::size_t> all = device_->allocations();
  all.erase("activations");
  all.erase("scratch");
  for (const auto& [name, bytes] : planned_.saved_by_name) all["activations: " + name] += static_cast<std::size_t>(slots_) * bytes;
  for (const auto& [name, bytes] : planned_.scratch_by_name) all["scratch: " + name] += bytes;
  return all;
}

void Engine::stage(std::span<const std::int32_t> values, std::int64_t first, std::int32_t missing) {
  const std::int64_t begin = first * options_.sequence_length, end = static_cast<std::int64_t>(values.size());
  staged_.clear();
  for (const std::int64_t row : rows_) staged_.push_back(begin + row < end ? values[static_cast<std::size_t>(begin + row)] : missing);
}

bool Engine::copied_as_they_are(std::span<const std::int32_t> values, std::int64_t first, const Tensor& to) {
  const auto begin = static_cast<std::size_t>(first * options_.sequence_length), count = static_cast<std::size_t>(to.elements());
  if (ring_ || begin + count > values.size()) return false;
  stream_->copy(to.data(), values.data() + begin, to.bytes());
  return true;
}

void Engine::load_ids(const HostBatch& batch, std::int64_t first, const Tensor& ids) {
  if (!tensor_.active() && copied_as_they_are(batch.inputs, first, ids)) return;
  stage(batch.inputs, first, 0);
  if (tensor_.active())
    for (std::int32_t& id : staged_) {
      const std::int64_t row = id - first_id_;
      id = row >= 0 && row < ids_here_ ? static_cast<std::int32_t>(row) : ops::absent_id;
    }
  stream_->copy(ids.data(), staged_.data(), ids.bytes());
}

void Engine::load_targets(const HostBatch& batch, std::int64_t first, const Tensor& targets) {
  if (copied_as_they_are(batch.targets, first, targets)) return;
  stage(batch.targets, first, ops::ignore_index);
  stream_->copy(targets.data(), staged_.data(), targets.bytes());
}

void Engine::run(const HostBatch& batch, std::int64_t micro_batches, ModelWork::Pass pass) {
  PipelineExecutor& runner = executor(micro_batches, pass == ModelWork::Pass::gradients);
  stream_->fill_zero(shared_.loss.sum.data(), shared_.loss.sum.bytes());
  work_.begin(pass, runner.schedule(), runner.plan(), shared_, [&](int micro_batch, const Tensor& ids, const Tensor& targets) {
    const std::int64_t first = micro_batch * options_.micro_batch_size;
    if (ids.defined()) load_ids(batch, first, ids);
    if (targets.defined()) load_targets(batch, first, targets);
  });
  try {
    runner.run(work_, observer_);
  } catch (const std::exception& error) {
    abort_activations(error.what());
    throw;
  }
  if (pass == ModelWork::Pass::gradients) last_ = &runner;
}

void Engine::abort_activations(const std::string& reason) {
  for (Communicator* const axis : {groups_.tensor, groups_.ring, groups_.ring_gradients}) {
    if (axis == nullptr) continue;
    axis->abort(reason);
    try {
      axis->barrier().wait();          // fails, behind everything that was in the queue
    } catch (const std::exception&) {  // as it should
    }
  }
}

double Engine::counted_loss() {
  double loss_sum = 0;
  stream_->copy(&loss_sum, shared_.loss.sum.data(), sizeof loss_sum);
  stream_->synchronize();
  return groups_.data.counts_losses ? loss_sum : 0;
}

void Engine::scale_gradients(double valid_tokens) {
  const double share = options_.reduction == ReduceOp::avg ? groups_.data.batch.size() : 1;
  const float scale = valid_tokens > 0 ? static_cast<float>(share / valid_tokens) : 0.0f;
  stream_->copy(shared_.loss.gradient_scale.data(), &scale, sizeof scale);
}

void Engine::enqueue_gradients(const HostBatch& batch) {
  BALEEN_CHECK(batch.sequences % options_.micro_batch_size == 0, batch.sequences, options_.micro_batch_size);
  sharding_.gradients().begin_step(*stream_);
  run(batch, micro_steps(batch.sequences), ModelWork::Pass::gradients);
  sharding_.gradients().wait(context_);
  if (!groups_.data.counts_losses) stream_->fill_zero(shared_.loss.sum.data(), shared_.loss.sum.bytes());
}

double Engine::gradients(const HostBatch& batch, double valid_tokens) {
  enqueue_gradients(batch, valid_tokens);
  return counted_loss();
}

double Engine::loss(const HostBatch& batch, std::int64_t micro_steps) {
  run(batch, micro_steps, ModelWork::Pass::loss);
  return counted_loss();
}

double Engine::bubble_fraction(int runs_ago) const {
  if (groups_.stages == nullptr || last_ == nullptr) return 0;
  return baleen::bubble_fraction(*groups_.stages, last_->times(runs_ago),
                                 one_clock_ ? PipelineClock::time_point() : common_moment(*groups_.stages));
}

}  // namespace baleen
