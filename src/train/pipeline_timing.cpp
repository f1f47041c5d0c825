#include "train/pipeline_timing.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace baleen {
namespace {

// Of each chunk, from where `costs` begins for it: seconds of the three kinds of passes, summed over its micro-batches.
double& seconds_of(std::vector<double>& costs, const Action& action) {
  const std::size_t kind = action.kind == ActionKind::forward ? 0 : action.kind == ActionKind::backward_weight ? 2 : 1;
  return costs[3 * static_cast<std::size_t>(action.chunk) + kind];
}

}  // namespace

std::optional<PipelineTiming> time_pipeline(const Engine& engine) {
  if (engine.stages() == nullptr || engine.last_executor() == nullptr) return std::nullopt;
  PipelineExecutor& executor = *engine.last_executor();
  const Schedule& schedule = executor.schedule();
  const auto chunks = static_cast<std::size_t>(schedule.chunks());
  std::vector<double> costs(3 * chunks);
  double message = std::numeric_limits<double>::max();
  for (const TimedAction& timed : executor.timed_actions()) {
    if (timed.action.compute())
      seconds_of(costs, timed.action) += timed.seconds;
    else
      message = std::min(message, timed.seconds);
  }
  Communicator& stages = *engine.stages();
  stages.all_reduce(costs.data(), costs.data(), costs.size(), DType::f64, ReduceOp::sum);
  stages.all_reduce(&message, &message, 1, DType::f64, ReduceOp::min).wait();

  PipelineTiming timing;
  double busy_ms = 0;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const auto mean_ms = [&](std::size_t kind) { return 1e3 * costs[3 * chunk + kind] / schedule.micro_batches; };
    timing.chunks.push_back({mean_ms(0), mean_ms(1), mean_ms(2)});
    busy_ms += schedule.micro_batches * (mean_ms(0) + mean_ms(1) + mean_ms(2));
  }
  timing.message_ms = 1e3 * message;
  timing.bubble_fraction = engine.bubble_fraction();
  timing.span_ms = busy_ms / (schedule.stages * (1 - timing.bubble_fraction));
  const Simulation played = simulate(schedule, timing.chunks, {timing.message_ms, executor.options().prefetch});
  timing.simulated_bubble_fraction = played.bubble_fraction;
  timing.simulated_span_ms = played.makespan;
  return timing;
}

}  // namespace baleen
