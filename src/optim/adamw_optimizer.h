// AdamW over the flat memory of units.
#pragma once

#include <array>
#include <memory>

#include "ops/adamw.h"
#include "optim/offloaded_states.h"
#include "sharding/unit_storage.h"

namespace baleen {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  std::uint64_t seed = 0;  // of stochastic rounding, where states are bf16
};

class AdamWOptimizer {
 public:
  AdamWOptimizer(AdamWConfig config, Device& device, UnitStorage& units);

  // Enqueues what the update of step `step` (from 1) reads, but for what ops::decide_update says of the gradients: that goes in between.
  void begin_step(Stream& compute, std::int64_t step, double learning_rate);
  // ops::AdamWScalar values [8] fp32, in device memory.
  Tensor scalars() const { return Tensor(scalars_.data(), DType::f32, {ops::adamw_scalars}); }
  // Enqueues one update of every trainable parameter.
  void update(ops::Context& context);

 private:
  void update_piece(ops::Context& context, const StatesPiece& piece);

  AdamWConfig config_;
  UnitStorage& units_;
  Buffer scalars_;
  // Scalars on their way: a slot is written again when its copy is done.
  static constexpr std::size_t slots = 4;
  std::unique_ptr<Device> host_;
  Buffer host_scalars_;  // [slots, 8] fp32
  std::array<Event, slots> copied_;
  std::size_t steps_begun_ = 0;
  std::unique_ptr<OffloadedStates> offloaded_;  // nullptr: states are in device memory
};

}  // namespace baleen
