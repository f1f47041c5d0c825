// One rank's device, memory and model: the gradients of its share of a global batch, the loss of any sequences.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "device/device.h"
#include "model/stage.h"
#include "sharding/sharding.h"

namespace baleen {

struct EngineOptions {
  ModelConfig model;  // resolved
  std::int64_t micro_batch_size = 1, sequence_length = 0;
  int threads = 0;  // OpenMP threads; 0: as many as the calling thread has set already
  StorageKind storage = StorageKind::training;
  ReduceOp reduction = ReduceOp::sum;
  int zero = 0;                                          // stage
  DType compute = DType::f32, state = DType::f32;        // of weights and activations; of master weights and moments
  Recompute recompute = Recompute::none;
  std::shared_ptr<Device> device = nullptr;              // none: the processor
  bool offload = false;                                  // states in host memory
};

// Sequences in host memory, [sequences, T] each; targets may be ops::ignore_index.
struct HostBatch {
  std::span<const std::int32_t> inputs, targets;
  std::int64_t sequences = 0;
};

class Engine {
 public:
  // `group`: the ranks that share each global batch. Runs every pass once without memory to learn what it needs, then allocates that.
  Engine(const EngineOptions& options, const DataGroup& group);

  UnitStorage& units() { return units_; }
  const UnitStorage& units() const { return units_; }
  Device& device() const { return *device_; }
  ops::Context& context() { return context_; }
  const DataGroup& group() const { return group_; }
  // The ranks that share the global batch.
  Communicator& axis() { return group_.batch; }

  // The gradients of this rank's `batch`, micro-batch by micro-batch (sequences: a multiple of the micro-batch), each unit reduced over the
  // group as soon as a micro-batch has completed it. Afterwards UnitStorage::updated_gradients are those of the mean loss over the
  // `valid_tokens` of the global batch. Returns this rank's Σ token losses.
  double gradients(const HostBatch& batch, double valid_tokens);
  // The same, only enqueued: the sum is in loss_sum() then, and on a GPU the batch is read until the work is done.
  void enqueue_gradients(const HostBatch& batch, double valid_tokens);
  // [1] fp64, in device memory.
  const Tensor& loss_sum() const { return loss_sum_; }
  // Σ token losses of this rank's sequences (any number), without gradients.
  double loss(const HostBatch& batch);

  // To be called when the optimizer has changed this rank's slices; and before anything but a pass reads the weights, which afterwards
  // are no longer written by work on the device.
  void publish_weights() { sharding_.weights().publish(*stream_); }
  void settle_weights() {
    sharding_.weights().settle(*stream_);
    stream_->synchronize();
  }

  // Nanoseconds the compute stream has waited for communication since construction.
  std::uint64_t exposed_nanoseconds() const { return sharding_.exposed_nanoseconds(); }
  // Bytes of every named allocation; activations and scratch by their parts.
  std::map<std::string, std::size_t> named_allocations() const;

 private:
  enum class Pass { gradients, loss };
  void run_micro_batch(Pass pass, const LayerContext& layers);
  void load_micro_batch(const HostBatch& batch, std::int64_t first);
  // Sizes the arenas by a dry run over every pass the storage allows.
  void plan_memory();

  EngineOptions options_;
  DataGroup group_;
  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  UnitStorage units_;
  Stage stage_;
  Sharding sharding_;
  Arena scratch_, saved_;
  ops::Context context_;
  Buffer scratch_memory_, saved_memory_, fixed_memory_;
  std::map<std::string, std::size_t> planned_;
  // Fixed tensors: the micro-batch, the rotary tables, the loss sum [1] fp64 and the gradient scale [1] fp32.
  MicroBatch micro_batch_;
  Tensor loss_sum_, gradient_scale_;
};

}  // namespace baleen
