#include "train/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/cross_entropy.h"
#include "optim/global_norm.h"

namespace baleen {

std::int64_t count_valid(std::span<const std::int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target != ops::ignore_index; });
}

TrainingStep::TrainingStep(Engine& engine, AdamWOptimizer& optimizer, const BatchSource& batches, LrSchedule schedule, double gradient_clip)
    : engine_(engine),
      optimizer_(optimizer),
      batches_(batches),
      schedule_(schedule),
      gradient_clip_(gradient_clip),
      norm_sum_(engine.device().allocate("gradient norm", sizeof(double))) {
  const auto elements = static_cast<std::size_t>(batches.global_batch_size() / engine.group().data_size * batches.sequence_length());
  inputs_.resize(elements);
  targets_.resize(elements);
}

HostBatch TrainingStep::next_batch(std::int64_t step) {
  const std::int64_t sequences = batches_.global_batch_size() / engine_.group().data_size;
  batches_.fill(static_cast<std::uint64_t>(step - 1), engine_.group().data_rank * sequences, sequences, inputs_.data(), targets_.data());
  return {inputs_, targets_, sequences};
}

std::optional<StepResult> TrainingStep::run(std::int64_t step, bool stop) {
  Communicator& everyone = engine_.everyone();
  const HostBatch batch = next_batch(step);

  // The loss is a mean over the global batch's valid targets; the wish to stop travels with their count.
  std::array<double, 2> totals{engine_.counts_batch() ? static_cast<double>(count_valid(batch.targets)) : 0.0, stop ? 1.0 : 0.0};
  everyone.all_reduce(totals.data(), totals.data(), totals.size(), DType::f64, ReduceOp::sum).wait();
  const double valid_tokens = totals[0];
  if (totals[1] > 0) return std::nullopt;

  double loss_sum = engine_.gradients(batch, valid_tokens);
  everyone.all_reduce(&loss_sum, &loss_sum, 1, DType::f64, ReduceOp::sum).wait();

  StepResult result;
  result.loss = valid_tokens > 0 ? loss_sum / valid_tokens : 0.0;
  result.grad_norm = global_gradient_norm(engine_.context(), engine_.group(), engine_.units(), Tensor(norm_sum_.data(), DType::f64, {1}));
  result.lr = schedule_.at(step);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) fail_non_finite(step, result);

  optimizer_.step(engine_.context(), step, result.lr, clip_factor(result.grad_norm, gradient_clip_));
  engine_.publish_weights();
  return result;
}

void TrainingStep::fail_non_finite(std::int64_t step, const StepResult& result) {
  // Each rank looks through the gradients it owns; the one of lowest rank that finds something names it.
  const UnitStorage& units = engine_.units();
  Communicator& everyone = engine_.everyone();
  std::array<char, 256> parameter{};
  std::int32_t finder = everyone.size();
  std::vector<std::byte> memory;
  for (const ParameterId id : units.parameters()) {
    if (!units.parameter(id).trainable) continue;
    const Tensor gradient = units.on_host(units.of_updated(units.updated_gradients(id.unit), id, units.part(id, units.updated(id.unit))), memory);
    const float* values = gradient.as<float>();
    if (std::all_of(values, values + gradient.elements(), [](float value) { return std::isfinite(value); })) continue;
    finder = everyone.rank();
    units.parameter(id).name.copy(parameter.data(), parameter.size() - 1);
    break;
  }
  everyone.all_reduce(&finder, &finder, 1, DType::i32, ReduceOp::min).wait();
  const bool found = finder < everyone.size();
  if (found) everyone.broadcast(parameter.data(), parameter.size(), DType::u8, finder).wait();
  throw Error(ExitCode::bad_numbers, fmt::format("the numbers went bad: loss {}, gradient norm {}", result.loss, result.grad_norm),
              fmt::format("step {}, first parameter with a non-finite gradient: {}", step, found ? fmt::format("{} (rank {})", parameter.data(), finder) : "none"),
              "the weights were not updated; go on from the last checkpoint with a lower optimizer.lr, more warmup_steps or a smaller gradient_clip");
}

}  // namespace baleen
