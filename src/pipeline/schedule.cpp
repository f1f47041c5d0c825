#include "pipeline/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace baleen {
namespace {

constexpr std::array<std::string_view, 11> action_names{"forward",         "backward",        "backward_input", "backward_weight",
                                                        "send_activation", "recv_activation", "send_gradient",  "recv_gradient",
                                                        "gather",          "release",         "reduce"};
constexpr std::array<std::string_view, 4> schedule_names{"gpipe", "1f1b", "interleaved", "zero-bubble"};

using Actions = std::vector<Action>;

Actions gpipe_order(const Schedule& schedule, int rank) {
  Actions order;
  for (int i = 0; i < schedule.micro_batches; ++i) order.push_back({ActionKind::forward, rank, i});
  for (int i = 0; i < schedule.micro_batches; ++i) order.push_back({ActionKind::backward, rank, i});
  return order;
}

Actions one_f_one_b_order(const Schedule& schedule, int rank) {
  const int m = schedule.micro_batches, ahead = std::min(m, schedule.stages - rank - 1);
  Actions order;
  for (int i = 0; i < ahead; ++i) order.push_back({ActionKind::forward, rank, i});
  for (int i = 0; i < m; ++i) {
    if (i + ahead < m) order.push_back({ActionKind::forward, rank, i + ahead});
    order.push_back({ActionKind::backward, rank, i});
  }
  return order;
}

Actions zero_bubble_order(const Schedule& schedule, int rank) {
  const int m = schedule.micro_batches, ahead = std::min(m, schedule.stages - rank - 1);
  Actions order;
  for (int i = 0; i < ahead; ++i) order.push_back({ActionKind::forward, rank, i});
  for (int i = 0; i < m; ++i) {
    if (i + ahead < m) order.push_back({ActionKind::forward, rank, i + ahead});
    order.push_back({ActionKind::backward_input, rank, i});
    if (i >= rank) order.push_back({ActionKind::backward_weight, rank, i - rank});
  }
  for (int i = std::max(0, m - rank); i < m; ++i) order.push_back({ActionKind::backward_weight, rank, i});
  return order;
}

// The passes of every rank in one direction, as (which of the rank's chunks, micro-batch): each group of p micro-batches through chunk
// 0, 1, …, v-1, or back. The last group is filled up with micro-batches that do not exist.
std::vector<std::pair<int, int>> interleaved_passes(const Schedule& schedule, bool backward) {
  std::vector<std::pair<int, int>> passes;
  for (int group = 0; group < schedule.micro_batches; group += schedule.stages)
    for (int local = 0; local < schedule.virtual_stages; ++local)
      for (int i = group; i < group + schedule.stages; ++i) passes.emplace_back(backward ? schedule.virtual_stages - 1 - local : local, i);
  return passes;
}

// Forwards before the first backward: the last rank's last chunk sees the first micro-batch after v-1 groups, each rank above is two ahead
// of the one below.
int interleaved_ahead(const Schedule& schedule, int rank) {
  return (schedule.virtual_stages - 1) * schedule.stages + 2 * (schedule.stages - rank - 1);
}

// Leaving the passes of micro-batches that do not exist out of an order that runs gives an order that runs.
Actions interleaved_order(const Schedule& schedule, int rank) {
  const auto forwards = interleaved_passes(schedule, false), backwards = interleaved_passes(schedule, true);
  const auto ahead = std::min(forwards.size(), static_cast<std::size_t>(interleaved_ahead(schedule, rank)));
  Actions order;
  const auto add = [&](ActionKind kind, const std::pair<int, int>& pass) {
    if (pass.second < schedule.micro_batches) order.push_back({kind, pass.first * schedule.stages + rank, pass.second});
  };
  for (std::size_t i = 0; i < ahead; ++i) add(ActionKind::forward, forwards[i]);
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (i + ahead < forwards.size()) add(ActionKind::forward, forwards[i + ahead]);
    add(ActionKind::backward, backwards[i]);
  }
  return order;
}

// Receives right before the computations that read them, sends right after those that write them.
Actions with_messages(const Schedule& schedule, const Actions& order) {
  Actions out;
  for (const Action& action : order) {
    const int chunk = action.chunk, i = action.micro_batch;
    const bool forward = action.kind == ActionKind::forward, backward = action.first_backward();
    if (forward && schedule.receives_input(chunk)) out.push_back({ActionKind::recv_activation, chunk, i});
    if (backward && schedule.sends_output(chunk)) out.push_back({ActionKind::recv_gradient, chunk, i});
    out.push_back(action);
    if (forward && schedule.sends_output(chunk)) out.push_back({ActionKind::send_activation, chunk, i});
    if (backward && schedule.receives_input(chunk)) out.push_back({ActionKind::send_gradient, chunk, i});
  }
  return out;
}

int promised_in_flight(const Schedule& schedule, int rank) {
  const int p = schedule.stages, m = schedule.micro_batches;
  switch (schedule.kind) {
    case ScheduleKind::gpipe: return m;
    case ScheduleKind::one_f_one_b: return std::min(m, p - rank);
    case ScheduleKind::interleaved: return std::min(m * schedule.virtual_stages, interleaved_ahead(schedule, rank) + 1);
    case ScheduleKind::zero_bubble: return std::min(m, p);
  }
  return 0;
}

Actions compute_order(const Schedule& schedule, int rank) {
  switch (schedule.kind) {
    case ScheduleKind::gpipe: return gpipe_order(schedule, rank);
    case ScheduleKind::one_f_one_b: return one_f_one_b_order(schedule, rank);
    case ScheduleKind::interleaved: return interleaved_order(schedule, rank);
    case ScheduleKind::zero_bubble: return zero_bubble_order(schedule, rank);
  }
  return {};
}

void refuse_below_one(int stages, int virtual_stages, int micro_batches) {
  const auto refuse = [](int value, const char* what, const char* key) {
    if (value < 1) throw Error(ExitCode::bad_config, fmt::format("a pipeline with {} {}", value, what), key, "use 1 or more");
  };
  refuse(stages, "stages", "parallelism.pipeline");
  refuse(virtual_stages, "virtual stages", "parallelism.virtual_stages");
  refuse(micro_batches, "micro-batches a step", "training.global_batch_size");
}

}  // namespace

std::string_view action_name(ActionKind kind) {
  return action_names[static_cast<std::size_t>(kind)];
}
std::string_view schedule_name(ScheduleKind kind) {
  return schedule_names[static_cast<std::size_t>(kind)];
}

std::string describe(const Action& action) {
  if (action.micro_batch < 0) return fmt::format("{} of chunk {}", action_name(action.kind), action.chunk);
  return fmt::format("{} of chunk {}, micro-batch {}", action_name(action.kind), action.chunk, action.micro_batch);
}

ScheduleKind parse_schedule(std::string_view name) {
  const auto found = std::find(schedule_names.begin(), schedule_names.end(), name);
  if (found == schedule_names.end())
    throw Error(ExitCode::bad_config, fmt::format("unknown pipeline schedule '{}'", name), "parallelism.schedule",
                fmt::format("use one of {}", fmt::join(schedule_names, ", ")));
  return static_cast<ScheduleKind>(found - schedule_names.begin());
}

Schedule make_schedule(ScheduleKind kind, int stages, int virtual_stages, int micro_batches) {
  refuse_below_one(stages, virtual_stages, micro_batches);
  if (virtual_stages != 1 && kind != ScheduleKind::interleaved)
    throw Error(ExitCode::bad_config, fmt::format("the schedule '{}' has no virtual stages, not {}", schedule_name(kind), virtual_stages),
                "parallelism.virtual_stages", "use schedule = \"interleaved\" or virtual_stages = 1");
  Schedule schedule{kind, stages, virtual_stages, micro_batches, false, {}, {}, {}};
  for (int rank = 0; rank < stages; ++rank) {
    schedule.ranks.push_back(with_messages(schedule, compute_order(schedule, rank)));
    schedule.activations_in_flight.push_back(promised_in_flight(schedule, rank));
    schedule.weights_gathered.push_back(0);
  }
  return schedule;
}

Schedule make_forward_schedule(int stages, int virtual_stages, int micro_batches) {
  refuse_below_one(stages, virtual_stages, micro_batches);
  Schedule schedule{ScheduleKind::interleaved, stages, virtual_stages, micro_batches, true, {}, {}, {}};
  for (int rank = 0; rank < stages; ++rank) {
    Actions order;
    for (const auto& [local, i] : interleaved_passes(schedule, false))
      if (i < micro_batches) order.push_back({ActionKind::forward, local * stages + rank, i});
    schedule.ranks.push_back(with_messages(schedule, order));
    schedule.activations_in_flight.push_back(1);
    schedule.weights_gathered.push_back(0);
  }
  return schedule;
}

}  // namespace baleen
