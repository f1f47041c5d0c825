#include "train/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace baleen {
namespace {

double lower_median(std::vector<double> values) {
  const auto middle = values.begin() + (static_cast<std::ptrdiff_t>(values.size()) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<SlowRank> slowest_rank(const std::vector<OwnTimes>& ranks, double elapsed) {
  std::optional<SlowRank> slowest;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<const OwnTimes*> peers;
    for (const OwnTimes& other : ranks)
      if (other.stage == ranks[rank].stage) peers.push_back(&other);
    if (peers.size() == 1) {
      peers.clear();
      for (const OwnTimes& other : ranks) peers.push_back(&other);
    }
    const auto median_of = [&](auto value) {
      std::vector<double> values;
      for (const OwnTimes* peer : peers) values.push_back(value(*peer));
      return lower_median(values);
    };
    const double own = ranks[rank].total(), usual = median_of([](const OwnTimes& times) { return times.total(); });
    if (own <= 1.5 * usual || own - usual <= 0.05 * elapsed || (slowest && own <= slowest->seconds)) continue;
    std::array<double, 3> excess{};
    for (std::size_t phase = 0; phase < excess.size(); ++phase)
      excess[phase] = ranks[rank].seconds[phase] - median_of([&](const OwnTimes& times) { return times.seconds[phase]; });
    slowest =
        SlowRank{static_cast<int>(rank), static_cast<int>(std::max_element(excess.begin(), excess.end()) - excess.begin()), own, usual};
  }
  return slowest;
}

RankWatch::RankWatch(ProgressReporter reporter, Engine& engine, int stage, PipelineObserver* next)
    : reporter_(std::move(reporter)), engine_(engine), next_(next), on_processor_(engine.device().kind() == DeviceKind::cpu) {
  times_.stage = stage;
  for (int unit = 0; unit < engine.units().units(); ++unit) units_.push_back(engine.units().unit(unit).name);
  // What a GPU's host enqueues says nothing, and a step that somebody hears of is not recorded as a graph.
  engine.observe(on_processor_ ? this : next_);
  if (reporter_.read_by_somebody()) engine.observe_units([this](int unit, bool backward) { on_unit(unit, backward); });
}

RankWatch::~RankWatch() {
  engine_.observe(nullptr);
  engine_.observe_units({});
}

void RankWatch::begin_unlimited(std::string_view action) const {
  reporter_.report(action, false);
}

void RankWatch::begin_step(std::int64_t step) {
  step_ = step;
  if (reporter_.read_by_somebody()) reporter_.report(fmt::format("step {}: reading the batch", step_), on_processor_);
}

// A GPU's host only enqueues and then waits for as long as the device needs.
void RankWatch::on_unit(int unit, bool backward) const {
  std::array<char, 112> text{};
  const auto written = fmt::format_to_n(text.data(), text.size(), "step {}: {} {}", step_, backward ? "backward pass of" : "weights of",
                                        units_[static_cast<std::size_t>(unit)]);
  reporter_.report({text.data(), std::min(written.size, text.size())}, on_processor_);
}

void RankWatch::on_action(const Action& action, PipelineClock::time_point begin, PipelineClock::time_point end) {
  const std::uint64_t exposed = engine_.exposed_nanoseconds();
  if (action.compute() && on_processor_)
    times_.seconds[action.kind == ActionKind::forward ? 1 : 2] +=
        std::max(0.0, std::chrono::duration<double>(end - begin).count() - static_cast<double>(exposed - exposed_) / 1e9);
  exposed_ = exposed;
  if (next_ != nullptr) next_->on_action(action, begin, end);
}

void RankWatch::end_step(double reading, double seconds) {
  times_.seconds[0] += reading;
  elapsed_ += seconds;
  exposed_ = engine_.exposed_nanoseconds();
  if (++steps_ < window) return;
  if (engine_.everyone().size() > 1) compare();
  steps_ = 0;
  elapsed_ = 0;
  times_.seconds = {};
}

void RankWatch::compare() {
  Communicator& everyone = engine_.everyone();
  const std::array<double, 4> mine{times_.seconds[0], times_.seconds[1], times_.seconds[2], static_cast<double>(times_.stage)};
  std::vector<std::array<double, 4>> all(static_cast<std::size_t>(everyone.size()));
  everyone.all_gather(mine.data(), all.data(), mine.size(), DType::f64).wait();
  if (everyone.rank() != 0) return;
  std::vector<OwnTimes> ranks;
  for (const auto& [reading, forward, backward, stage] : all) ranks.push_back({{reading, forward, backward}, static_cast<int>(stage)});
  const std::optional<SlowRank> slow = slowest_rank(ranks, elapsed_);
  const bool again = slow && suspect_ && slow->rank == suspect_->rank && slow->seconds - slow->usual > window * least_lag;
  times_slow_ = again ? times_slow_ + 1 : 0;
  if (times_slow_ == 2)
    log::warning(
        "rank {} is slow: {:.1f} ms a step for its own work, where its peers take {:.1f} ms; what takes longest beyond theirs is {}",
        slow->rank, 1e3 * slow->seconds / window, 1e3 * slow->usual / window, OwnTimes::phases[static_cast<std::size_t>(slow->phase)]);
  suspect_ = slow;
}

}  // namespace baleen
