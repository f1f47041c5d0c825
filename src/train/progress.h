// What a person sees while a run trains: a bar that redraws itself on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>

#include "train/metrics.h"

namespace baleen {

class Progress {
 public:
  // Of steps first … last; shown on standard error by rank 0 alone.
  Progress(std::int64_t first, std::int64_t last, bool visible);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const MetricsRow& row);
  void show(const ValidationRow& row);

 private:
  double seconds_left(std::int64_t step) const;
  void end_bar();

  using Clock = std::chrono::steady_clock;
  std::int64_t first_, last_;
  bool visible_, terminal_;
  bool bar_drawn_ = false;
  Clock::time_point start_ = Clock::now(), last_line_{};
};

}  // namespace baleen
