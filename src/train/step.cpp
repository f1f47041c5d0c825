#include "train/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "device/host_memory.h"
#include "device/timing.h"
#include "ops/cross_entropy.h"
#include "ops/update_decision.h"
#include "optim/global_norm.h"
#include "train/non_finite.h"

namespace baleen {

std::int64_t count_valid(std::span<const std::int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target != ops::ignore_index; });
}

TrainingStep::TrainingStep(Engine& engine, AdamWOptimizer& optimizer, const BatchSource& batches, LrSchedule schedule, double gradient_clip,
                           StepGraphs graphs, bool skip_non_finite)
    : engine_(engine),
      optimizer_(optimizer),
      batches_(batches),
      schedule_(schedule),
      gradient_clip_(gradient_clip),
      skip_non_finite_(skip_non_finite),
      late_(engine.device().kind() == DeviceKind::gpu && !skip_non_finite ? 1 : 0),
      host_(create_host_memory(engine.device())),
      squares_(engine.device().allocate("gradient norm", sizeof(double))) {
  const auto elements = static_cast<std::size_t>(batches.global_batch_size() / engine.group().data_size * batches.sequence_length());
  for (std::size_t i = 0; i <= static_cast<std::size_t>(late_); ++i)
    slots_[i] = {host_->allocate("inputs", elements * sizeof(std::int32_t)), host_->allocate("targets", elements * sizeof(std::int32_t)),
                 host_->allocate("loss and norm", 2 * sizeof(double)), nullptr};
  if (engine.device().kind() != DeviceKind::gpu) return;
  why_no_graph_ = graphs == StepGraphs::never ? "not wanted" : reason_against_graphs();
  if (!why_no_graph_.empty()) log::info("each step is enqueued anew, not recorded as a graph: {}", why_no_graph_);
}

bool TrainingStep::records_graphs() const {
  return engine_.device().kind() == DeviceKind::gpu && why_no_graph_.empty();
}

std::string TrainingStep::reason_against_graphs() const {
  constexpr std::int64_t most_micro_batches = 64;  // a graph has hundreds of nodes for each
  const StorageOptions& storage = engine_.units().options();
  if (engine_.everyone().size() > 1) return "several ranks";
  if (storage.stage >= 2) return fmt::format("parallelism.zero = {}", storage.stage);
  if (storage.offload) return "training.offload";
  if (engine_.observed()) return "actions are traced";
  if (const std::int64_t micro_batches = engine_.micro_steps(batches_.global_batch_size()); micro_batches > most_micro_batches)
    return fmt::format("{} micro-batches a step", micro_batches);
  return "";
}

HostBatch TrainingStep::fill(Slot& slot, std::int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t sequences = batches_.global_batch_size() / engine_.group().data_size;
  batches_.fill(static_cast<std::uint64_t>(step - 1 + skipped_batches_), engine_.group().data_rank * sequences, sequences,
                slot.inputs.as<std::int32_t>(), slot.targets.as<std::int32_t>());
  const auto elements = static_cast<std::size_t>(sequences * batches_.sequence_length());
  reading_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {{slot.inputs.as<std::int32_t>(), elements}, {slot.targets.as<std::int32_t>(), elements}, sequences};
}

bool TrainingStep::enqueue(std::int64_t step, std::span<double> votes) {
  BALEEN_CHECK(pending() <= late_, pending(), late_);
  Communicator& everyone = engine_.everyone();
  ops::Context& context = engine_.context();
  Pending now;
  now.result.step = step;
  now.result.lr = schedule_.at(step);
  now.slot = static_cast<std::size_t>(step % (late_ + 1));
  now.begin = pending_.empty() ? record_time(context.stream) : pending_.back().done;
  Slot& slot = slots_[now.slot];
  const HostBatch batch = fill(slot, step);

  // The loss is a mean over the global batch's valid targets; the votes travel with their count.
  std::vector<double> totals{engine_.counts_batch() ? static_cast<double>(count_valid(batch.targets)) : 0.0};
  totals.insert(totals.end(), votes.begin(), votes.end());
  everyone.all_reduce(totals.data(), totals.data(), totals.size(), DType::f64, ReduceOp::sum).wait();
  now.valid_tokens = totals[0];
  std::copy(totals.begin() + 1, totals.end(), votes.begin());
  if (votes[0] > 0) return false;

  optimizer_.begin_step(context.stream, step, now.result.lr);
  if (skip_non_finite_) context.stream.fill_zero(optimizer_.scalars().as<float>() + ops::adamw_skip, sizeof(float));  // of an earlier step
  engine_.scale_gradients(now.valid_tokens);
  enqueue_or_replay(slot, batch);
  now.done = record_time(context.stream);
  pending_.push_back(std::move(now));
  return true;
}

void TrainingStep::enqueue_work(const Slot& slot, const HostBatch& batch) {
  ops::Context& context = engine_.context();
  Communicator& everyone = engine_.everyone();
  engine_.enqueue_gradients(batch);
  const Tensor &loss_sum = engine_.loss_sum(), squares(squares_.data(), DType::f64, {1});
  if (!everyone.alone())
    context.stream.wait(everyone.all_reduce(loss_sum.data(), loss_sum.data(), 1, DType::f64, ReduceOp::sum, context.stream.record()));
  sum_gradient_squares(context, engine_.group(), engine_.units(), squares);

  ops::decide_update(context, optimizer_.scalars(), loss_sum, squares, gradient_clip_);
  optimizer_.update(context);
  engine_.publish_weights();
  // A graph ends with what it has begun, and waits for nothing that was begun before it.
  if (records_graphs()) engine_.wait_for_weights();

  context.stream.copy(slot.sums.as<double>(), loss_sum.data(), sizeof(double));
  context.stream.copy(slot.sums.as<double>() + 1, squares.data(), sizeof(double));
}

void TrainingStep::enqueue_or_replay(Slot& slot, const HostBatch& batch) {
  Stream& stream = engine_.context().stream;
  if (records_graphs() && methods_chosen_ && slot.graph == nullptr) {
    try {
      slot.graph = capture(stream, [&] { enqueue_work(slot, batch); });
      if (graph_nodes_ == 0) log::info("each step is replayed from here on as a graph of {} nodes", slot.graph->nodes());
    } catch (const Error& error) {
      why_no_graph_ = error.what();
      log::warning("each step is enqueued anew from here on, it could not be recorded as a graph: {}", error.what());
    }
  }
  graph_nodes_ = slot.graph == nullptr ? 0 : slot.graph->nodes();
  replayed() ? slot.graph->replay(stream) : enqueue_work(slot, batch);
  methods_chosen_ = true;
}

StepResult TrainingStep::take() {
  BALEEN_CHECK(!pending_.empty(), "no step is pending");
  Pending& first = pending_.front();
  first.done.wait();
  const double* const sums = slots_[first.slot].sums.as<double>();
  StepResult& result = first.result;
  result.loss = first.valid_tokens > 0 ? sums[0] / first.valid_tokens : 0.0;
  result.grad_norm = std::sqrt(sums[1]);
  result.seconds = seconds_between(first.begin, first.done);
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    // The weights are still those that the step began with, whatever has been enqueued since.
    result.skipped = name_problem(first);
    if (!skip_non_finite_)
      throw Error(ExitCode::bad_numbers, fmt::format("the numbers went bad: loss {}, gradient norm {}", result.loss, result.grad_norm),
                  result.skipped,
                  "the weights were not updated; go on from the last checkpoint with a lower optimizer.lr, more warmup_steps or a smaller "
                  "gradient_clip");
  }
  const StepResult taken = result;
  pending_.pop_front();
  return taken;
}

std::optional<StepResult> TrainingStep::run(std::int64_t step, bool stop) {
  if (!enqueue(step, stop)) return std::nullopt;
  return take();
}

std::string TrainingStep::name_problem(const Pending& failed) {
  return fmt::format("step {}, {}", failed.result.step,
                     name_non_finite(engine_, fill(slots_[failed.slot], failed.result.step), failed.valid_tokens));
}

}  // namespace baleen
