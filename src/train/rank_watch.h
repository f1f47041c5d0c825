// What this rank is doing, for the launcher that watches it, and how long its own work takes, compared between the ranks: a rank that hangs
// is named with its last action, one that is slow with the phase that takes it longer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/progress_board.h"
#include "pipeline/executor.h"
#include "train/engine.h"

namespace baleen {

// Seconds that a rank spent on its own work, waits for others left out.
struct OwnTimes {
  static constexpr std::array<const char*, 3> phases{"reading data", "the forward pass", "the backward pass"};
  std::array<double, 3> seconds{};
  int stage = 0;  // of the pipeline: stages may differ by right
  double total() const { return seconds[0] + seconds[1] + seconds[2]; }
};

struct SlowRank {
  int rank = 0, phase = 0;
  double seconds = 0, usual = 0;
};
// The rank that takes longest, if that is more than 1.5 times the lower median of its stage's ranks (of all, where it is alone on its
// stage), and by more than a twentieth of `elapsed`, the seconds that all took.
std::optional<SlowRank> slowest_rank(const std::vector<OwnTimes>& ranks, double elapsed);

class RankWatch final : public PipelineObserver {
 public:
  // Hears of the engine's units and actions from now on and hands the latter on to `next`, which may be nullptr. `engine` must live as
  // long.
  RankWatch(ProgressReporter reporter, Engine& engine, int stage, PipelineObserver* next);
  ~RankWatch() override;
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // What takes as long as it takes: saving, loading.
  void begin_unlimited(std::string_view action) const;
  void begin_step(std::int64_t step);
  // `reading`: seconds for this rank's part of the batch. Every `window` steps the ranks compare (collective over everyone); rank 0 warns
  // of a rank that was the slowest three times in a row, by more than what another program on its machine may cost it.
  void end_step(double reading, double seconds);

  void on_action(const Action& action, PipelineClock::time_point begin, PipelineClock::time_point end) override;

 private:
  static constexpr int window = 10;
  static constexpr double least_lag = 0.01;  // seconds a step
  void on_unit(int unit, bool backward) const;
  void compare();

  ProgressReporter reporter_;
  Engine& engine_;
  PipelineObserver* next_;
  bool on_processor_;
  std::vector<std::string> units_;
  std::int64_t step_ = 0;
  OwnTimes times_;
  double elapsed_ = 0;
  int steps_ = 0;
  std::uint64_t exposed_ = 0;  // engine's nanoseconds of waits at the latest action
  std::optional<SlowRank> suspect_;
  int times_slow_ = 0;  // in a row
};

}  // namespace baleen
