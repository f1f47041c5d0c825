// One training step, as DESIGN.md section 4 has it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "optim/adamw_optimizer.h"
#include "optim/lr_schedule.h"
#include "train/engine.h"

namespace baleen {

struct StepResult {
  double loss = 0;       // mean over the valid targets of the global batch
  double grad_norm = 0;  // of the whole gradient, before clipping
  double lr = 0;
};

class TrainingStep {
 public:
  TrainingStep(Engine& engine, AdamWOptimizer& optimizer, const BatchSource& batches, LrSchedule schedule, double gradient_clip);

  // Step `step`, counted from 1. Nothing where any rank has `stop` set: then no rank runs the step. Throws Error(bad_numbers) on every
  // rank, before the update, when the loss or the norm of the gradient is not finite.
  std::optional<StepResult> run(std::int64_t step, bool stop);

 private:
  // This rank's part of the global batch of `step`.
  HostBatch next_batch(std::int64_t step);
  [[noreturn]] void fail_non_finite(std::int64_t step, const StepResult& result);

  Engine& engine_;
  AdamWOptimizer& optimizer_;
  const BatchSource& batches_;
  LrSchedule schedule_;
  double gradient_clip_;
  std::vector<std::int32_t> inputs_, targets_;  // [G / (replicate · dp), T]
  Buffer norm_sum_;                             // [1] fp64
};

// Valid targets among `targets`.
std::int64_t count_valid(std::span<const std::int32_t> targets);

}  // namespace baleen
