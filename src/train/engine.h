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
#include "sharding/gradient_reduction.h"

namespace baleen {

struct EngineOptions {
  ModelConfig model;  // resolved
  std::int64_t micro_batch_size = 1, sequence_length = 0;
  int threads = 0;  // OpenMP threads; 0: as many as the calling thread has set already
  StorageKind storage = StorageKind::training;
  ReduceOp reduction = ReduceOp::sum;
};

// Sequences in host memory, [sequences, T] each; targets may be ops::ignore_index.
struct HostBatch {
  std::span<const std::int32_t> inputs, targets;
  std::int64_t sequences = 0;
};

class Engine {
 public:
  // `axis`: the ranks that share each global batch. Runs every pass once without memory to learn what it needs, then allocates that.
  Engine(const EngineOptions& options, Communicator& axis);

  UnitStorage& units() { return units_; }
  const UnitStorage& units() const { return units_; }
  Device& device() const { return *device_; }
  ops::Context& context() { return context_; }
  Communicator& axis() { return axis_; }

  // Zeroes the gradients, adds those of this rank's `batch` micro-batch by micro-batch (sequences: a multiple of the micro-batch), and
  // all-reduces each unit as soon as the last micro-batch has completed it. Afterwards gradients are those of the mean loss over the
  // `valid_tokens` of the global batch. Returns this rank's Σ token losses.
  double gradients(const HostBatch& batch, double valid_tokens);
  // Σ token losses of this rank's sequences (any number), without gradients.
  double loss(const HostBatch& batch);

  // Nanoseconds the compute stream has waited for reductions since construction.
  std::uint64_t exposed_nanoseconds() const { return exposed_nanoseconds_; }
  // Bytes of every named allocation; activations and scratch by their parts.
  std::map<std::string, std::size_t> named_allocations() const;

 private:
  enum class Pass { gradients, loss };
  void run_micro_batch(Pass pass, const LayerContext& layers, const Stage::UnitComplete& complete);
  void load_micro_batch(const HostBatch& batch, std::int64_t first);
  // Sizes the arenas by a dry run over every pass the storage allows.
  void plan_memory();

  EngineOptions options_;
  Communicator& axis_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  UnitStorage units_;
  Stage stage_;
  GradientReduction reduction_;
  Arena scratch_, saved_;
  ops::Context context_;
  Buffer scratch_memory_, saved_memory_, fixed_memory_;
  std::map<std::string, std::size_t> planned_;
  // Fixed tensors: the micro-batch, the rotary tables, the loss sum [1] fp64 and the gradient scale [1] fp32.
  MicroBatch micro_batch_;
  Tensor loss_sum_, gradient_scale_;
  std::uint64_t exposed_nanoseconds_ = 0;
};

}  // namespace baleen
