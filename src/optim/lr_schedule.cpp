#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace baleen {

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  // Progress of the decay in [0, 1].
  const auto progress = [&](std::int64_t begin, std::int64_t end) {
    if (end <= begin) return step > begin ? 1.0 : 0.0;
    return std::clamp(static_cast<double>(step - begin) / static_cast<double>(end - begin), 0.0, 1.0);
  };
  const double range = 1.0 - final_fraction;
  switch (kind) {
    case LrScheduleKind::constant: return peak;
    case LrScheduleKind::cosine:
      return peak * (final_fraction + range * 0.5 * (1.0 + std::cos(std::numbers::pi * progress(warmup_steps, decay_steps))));
    case LrScheduleKind::linear: return peak * (1.0 - range * progress(warmup_steps, decay_steps));
    case LrScheduleKind::wsd: return peak * (1.0 - range * progress(std::max(warmup_steps, total_steps - decay_steps), total_steps));
  }
  return peak;
}

}  // namespace baleen
