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

  // One update of every trainable parameter. `step` counts from 1; gradients are multiplied by gradient_factor (clipping) on the way.
  void step(ops::Context& context, std::int64_t step, double learning_rate, double gradient_factor);

 private:
  AdamWConfig config_;
  UnitStorage& units_;
  Buffer scalars_;  // ops::AdamWScalar values, in device memory
};

}  // namespace baleen
