// Learning-rate schedules.
#pragma once

#include <cstdint>

namespace baleen {

enum class LrScheduleKind { constant, cosine, linear, wsd };

// Warm-up rises linearly to the peak over warmup_steps (step s has peak · s / warmup_steps). Then
//   constant: the peak;
//   cosine, linear: from the peak at the end of warm-up to final_fraction · peak at step decay_steps, and that from there on;
//   wsd (warmup-stable-decay, arXiv 2404.06395): the peak until the last decay_steps of `total_steps`, then linearly to final_fraction ·
//   peak.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::constant;
  double peak = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;
  std::int64_t total_steps = 0;
  double final_fraction = 0.1;

  // The rate of step `step`, counted from 1.
  double at(std::int64_t step) const;
};

}  // namespace baleen
