// AdamW over the flat memory of units.
#pragma once

#include "ops/adamw.h"
#include "sharding/unit_storage.h"

namespace baleen {

struct AdamWConfig {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  std::uint64_t seed = 0;  // of stochastic rounding, where states are bf16
};

class AdamWOptimizer {
 public:
  AdamWOptimizer(AdamWConfig config, Device& device, UnitStorage& units);

  // Offloaded states (StorageOptions::offload) are brought to the device unit by unit (J. Ren et al., "ZeRO-Offload", arXiv 2101.06840,
  // keeps them in host memory as well; there the host updates them).
  // One update of every trainable parameter. `step` counts from 1; gradients are multiplied by gradient_factor (clipping) on the way.
  void step(ops::Context& context, std::int64_t step, double learning_rate, double gradient_factor);

 private:
  // What a unit's update works on: [updated] each, in device memory.
  struct States {
    Tensor master, exp_avg, exp_avg_sq;
  };
  // The unit's states themselves, or copies of offloaded ones; and the copies' way back.
  States fetch(int unit, Stream& stream) const;
  void give_back(int unit, const States& states, Stream& stream) const;

  AdamWConfig config_;
  UnitStorage& units_;
  Buffer scalars_;  // ops::AdamWScalar values, in device memory
  Buffer staging_;  // of offloaded states: as much as the largest unit needs
};

}  // namespace baleen
