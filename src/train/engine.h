// One rank's device, memory and layers: the gradients of its share of a global batch, the loss of any sequences.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "layers/ring_attention.h"
#include "layers/zigzag.h"
#include "pipeline/executor.h"
#include "sharding/sharding.h"
#include "train/model_work.h"

namespace baleen {

struct EngineOptions {
  ModelConfig model;  // resolved
  std::int64_t micro_batch_size = 1, sequence_length = 0;
  int threads = 0;  // OpenMP threads; 0: as many as the calling thread has set already
  StorageKind storage = StorageKind::training;
  ReduceOp reduction = ReduceOp::sum;
  int zero = 0;                                    // stage
  DType compute = DType::f32, state = DType::f32;  // of weights and activations; of master weights and moments
  Recompute recompute = Recompute::none;
  std::shared_ptr<Device> device = nullptr;           // none: the processor
  bool offload = false;                               // states in host memory
  bool sequence_parallel = true;                      // where axis tp has several ranks
  ScheduleKind schedule = ScheduleKind::one_f_one_b;  // where axis pp has several
  std::int64_t micro_batches = 1;                     // a rank's in a step; another number is allowed and allocates what it needs more
  bool overlap = true;                                // communication runs beside computation
  DType gradient = DType::f32;                        // of gradients
  std::int64_t head_chunks = 0;                       // of a micro-batch's logits; 0: see layers/head_loss.h
};

// The communicators that an engine works over, and its place in the pipeline. Owns nothing.
struct EngineGroups {
  DataGroup data;
  Communicator* tensor = nullptr;  // axis tp: activations; nullptr: one rank
  Communicator* ring = nullptr;    // axis cp: keys and values, and their gradients; nullptr: one rank
  Communicator* ring_gradients = nullptr;
  PipelineLinks* links = nullptr;  // to the stages before and behind; nullptr: one stage
  Communicator* stages = nullptr;  // axis pp
  PipelinePlace place = {};

  EngineGroups(DataGroup data_, Communicator* tensor_ = nullptr) : data(std::move(data_)), tensor(tensor_) {}  // NOLINT
  EngineGroups(Communicator& axis) : data(axis) {}                                                             // NOLINT
};

// Sequences in host memory, [sequences, T] each; targets may be ops::ignore_index.
struct HostBatch {
  std::span<const std::int32_t> inputs, targets;
  std::int64_t sequences = 0;
};

class Engine {
 public:
  // Runs every pass once without memory to learn what it needs, then allocates that.
  Engine(const EngineOptions& options, const EngineGroups& groups);

  UnitStorage& units() { return units_; }
  const UnitStorage& units() const { return units_; }
  Device& device() const { return *device_; }
  ops::Context& context() { return context_; }
  const DataGroup& group() const { return groups_.data; }
  // Every rank of the layout.
  Communicator& everyone() { return *groups_.data.everyone; }

  // The gradients of this rank's `batch` (sequences: a multiple of the micro-batch), in the order of the schedule, each unit reduced over
  // the group as soon as its last micro-batch has completed it. Afterwards UnitStorage::updated_gradients are those of the mean loss over
  // the `valid_tokens` of the global batch. Returns this rank's Σ token losses; 0 where another rank counts the same.
  double gradients(const HostBatch& batch, double valid_tokens);
  // The same, only enqueued: the sum is in loss_sum() then, and on a GPU the batch is read until the work is done.
  void enqueue_gradients(const HostBatch& batch, double valid_tokens) {
    scale_gradients(valid_tokens);
    enqueue_gradients(batch);
  }
  // Its two parts: a number that differs from step to step, and what a graph can hold.
  void scale_gradients(double valid_tokens);
  void enqueue_gradients(const HostBatch& batch);
  // [1] fp64, in device memory.
  const Tensor& loss_sum() const { return shared_.loss.sum; }
  // The same without gradients, of any number of sequences. `micro_steps`: as many as any rank needs for its part (all ranks take the
  // same).
  double loss(const HostBatch& batch, std::int64_t micro_steps);
  double loss(const HostBatch& batch) { return loss(batch, micro_steps(batch.sequences)); }
  // Micro-steps that so many sequences take.
  std::int64_t micro_steps(std::int64_t sequences) const { return (sequences + options_.micro_batch_size - 1) / options_.micro_batch_size; }
  // Whether this rank is the one, of those that read the same sequences, that counts their tokens.
  bool counts_batch() const { return groups_.data.counts_batch; }

  // To be called when the optimizer has changed this rank's slices; and before anything but a pass reads the weights, which afterwards
  // are no longer written by work on the device.
  void publish_weights() { sharding_.weights().publish(*stream_); }
  void settle_weights() {
    wait_for_weights();
    stream_->synchronize();
  }
  // The same for what is enqueued from here on.
  void wait_for_weights() { sharding_.weights().settle(*stream_); }

  // Of every action of the passes; it must live as long as the engine.
  void observe(PipelineObserver* observer) { observer_ = observer; }
  void observe_units(Sharding::Observer observer) { sharding_.observe(std::move(observer)); }
  bool observed() const { return observer_ != nullptr; }

  // CommWaits::nanoseconds() of all communication but the pipeline's messages.
  std::uint64_t exposed_nanoseconds() { return sharding_.exposed_nanoseconds(); }
  // The idle share of the gradients() before so many later ones (0, 1) over all stages, which must have ended; 0 without a pipeline.
  // Collective over axis pp.
  double bubble_fraction(int runs_ago = 0) const;
  // The executor of the last gradients(); nullptr before. What it tells of a step is true when the device is done with the step.
  PipelineExecutor* last_executor() const { return last_; }
  Communicator* stages() const { return groups_.stages; }  // axis pp; nullptr: one stage
  // Bytes of every named allocation; activations and scratch by their parts.
  std::map<std::string, std::size_t> named_allocations() const;

 private:
  // The executor of a step of so many micro-batches, made when first asked for, with the memory that it needs.
  PipelineExecutor& executor(std::int64_t micro_batches, bool training);
  void create_tables();
  void run(const HostBatch& batch, std::int64_t micro_batches, ModelWork::Pass pass);
  // This rank's tokens of the micro-batch that begins with sequence `first`, into staged_; `missing` where the batch has no more sequences.
  void stage(std::span<const std::int32_t> values, std::int64_t first, std::int32_t missing);
  // The same straight to the device, where this rank has all tokens of a whole micro-batch; else false.
  bool copied_as_they_are(std::span<const std::int32_t> values, std::int64_t first, const Tensor& to);
  void load_ids(const HostBatch& batch, std::int64_t first, const Tensor& ids);
  void load_targets(const HostBatch& batch, std::int64_t first, const Tensor& targets);
  double counted_loss();
  // Ends the operations that use this rank's activations, where a step has failed on the way.
  void abort_activations(const std::string& reason);

  EngineOptions options_;
  EngineGroups groups_;
  bool one_clock_ = true;  // of the stages
  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<StageLayers> layers_;  // by chunk of this rank
  UnitStorage units_;
  Sharding sharding_;
  TensorParallel tensor_;
  ZigZag tokens_;                   // which of a sequence's tokens this rank has
  std::vector<std::int64_t> rows_;  // of the micro-batch's tokens, this rank's
  std::optional<RingAttention> ring_;
  Arena scratch_;
  ops::Context context_;
  ModelWork work_;
  ModelWork::Memory planned_;
  Buffer scratch_memory_, fixed_memory_;
  // Positions and rotary tables, the loss sum [1] fp64 and the gradient scale [1] fp32.
  ModelWork::Shared shared_;
  std::int64_t first_id_ = 0, ids_here_ = 0;  // the rows of the embedding's table that this rank has
  std::vector<std::int32_t> staged_;
  int slots_ = 0;
  std::map<std::pair<std::int64_t, bool>, std::unique_ptr<PipelineExecutor>> executors_;
  PipelineExecutor* last_ = nullptr;
  PipelineObserver* observer_ = nullptr;
};

}  // namespace baleen
