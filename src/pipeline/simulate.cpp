#include "pipeline/simulate.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "pipeline/boundary_plan.h"

namespace baleen {
namespace {

// Messages of one direction from one rank to another, all in the order in which they are sent. A time is known as soon as it is in the
// list.
struct Channel {
  std::vector<double> sent, released, posted, arrived;
  std::size_t written = 0;  // computations that have begun to write a message
  std::size_t received = 0;
  std::size_t slots = std::numeric_limits<std::size_t>::max();  // of the receiver

  // Fills in the arrivals that follow from what is known.
  void update(const SimulationOptions& options) {
    while (arrived.size() < sent.size()) {
      const std::size_t message = arrived.size();
      double ready = 0;
      if (!options.prefetch) {
        if (message >= posted.size()) return;
        ready = posted[message];
      } else if (message >= slots) {
        if (message - slots >= released.size()) return;
        ready = released[message - slots];
      }
      arrived.push_back(std::max(sent[message], ready) + options.latency);
    }
  }
};

class Simulator {
 public:
  Simulator(const Schedule& schedule, const std::vector<ChunkCosts>& costs, const SimulationOptions& options)
      : schedule_(schedule), costs_(costs), options_(options) {
    const auto ranks = schedule.ranks.size();
    BALEEN_CHECK(costs.size() == 1 || costs.size() == static_cast<std::size_t>(schedule.chunks()), costs.size(), schedule.chunks());
    activations_.resize(ranks);
    gradients_.resize(ranks);
    now_.resize(ranks);
    result_.next.resize(ranks);
    result_.busy.resize(ranks);
    for (const auto& table : schedule.ranks) result_.spans.emplace_back(table.size());
    for (std::size_t rank = 0; options.prefetch && rank < ranks; ++rank) {
      const BoundaryPlan plan = plan_boundary(schedule, static_cast<int>(rank));
      activations_[rank].slots = static_cast<std::size_t>(plan.activation_slots);
      gradients_[rank].slots = static_cast<std::size_t>(plan.gradient_slots);
    }
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank)
        while (result_.next[rank] < schedule_.ranks[rank].size() && step(rank)) moved = true;
    }
    result_.complete = true;
    for (std::size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
      result_.complete &= result_.next[rank] == schedule_.ranks[rank].size();
      result_.makespan = std::max(result_.makespan, now_[rank]);
    }
    const double busy = std::accumulate(result_.busy.begin(), result_.busy.end(), 0.0);
    if (result_.makespan > 0) result_.bubble_fraction = 1 - busy / (static_cast<double>(schedule_.stages) * result_.makespan);
    return std::move(result_);
  }

 private:
  // The channel into the rank that holds `chunk`: its inputs, or the gradients of its outputs.
  Channel& activations_into(int chunk) { return activations_[static_cast<std::size_t>(schedule_.rank_of(chunk))]; }
  Channel& gradients_into(int chunk) { return gradients_[static_cast<std::size_t>(schedule_.rank_of(chunk))]; }

  // One action of the rank; false when it has to wait for something that is not known yet.
  bool step(std::size_t rank) {
    const Action& action = schedule_.ranks[rank][result_.next[rank]];
    SimulatedSpan& span = result_.spans[rank][result_.next[rank]];
    span.begin = now_[rank];
    if (action.compute()) {
      if (!compute(rank, action, span)) return false;
    } else if (action.kind == ActionKind::send_activation) {
      activations_into(action.chunk + 1).sent.push_back(now_[rank]);
    } else if (action.kind == ActionKind::send_gradient) {
      gradients_into(action.chunk - 1).sent.push_back(now_[rank]);
    } else if (action.kind == ActionKind::recv_activation) {
      if (!receive(rank, activations_into(action.chunk))) return false;
    } else if (action.kind == ActionKind::recv_gradient) {
      if (!receive(rank, gradients_into(action.chunk))) return false;
    }
    span.end = now_[rank];
    ++result_.next[rank];
    return true;
  }

  bool receive(std::size_t rank, Channel& channel) {
    if (!options_.prefetch && channel.posted.size() == channel.received) channel.posted.push_back(now_[rank]);
    channel.update(options_);
    if (channel.arrived.size() <= channel.received) return false;
    now_[rank] = std::max(now_[rank], channel.arrived[channel.received++]);
    return true;
  }

  bool compute(std::size_t rank, const Action& action, SimulatedSpan& span) {
    Channel* out = nullptr;
    if (action.kind == ActionKind::forward && schedule_.sends_output(action.chunk)) out = &activations_into(action.chunk + 1);
    if (action.first_backward() && schedule_.receives_input(action.chunk)) out = &gradients_into(action.chunk - 1);
    if (out != nullptr) {
      if (out->written >= outgoing_slots) {
        const std::size_t before = out->written - outgoing_slots;
        out->update(options_);
        if (before >= out->arrived.size()) return false;
        now_[rank] = std::max(now_[rank], out->arrived[before]);
      }
      ++out->written;
    }
    span.begin = now_[rank];
    const double cost = cost_of(action);
    now_[rank] += cost;
    result_.busy[rank] += cost;
    if (schedule_.ends(action)) {
      if (schedule_.receives_input(action.chunk)) activations_into(action.chunk).released.push_back(now_[rank]);
      if (action.last_backward() && schedule_.sends_output(action.chunk)) gradients_into(action.chunk).released.push_back(now_[rank]);
    }
    return true;
  }

  double cost_of(const Action& action) const {
    const ChunkCosts& costs = costs_[costs_.size() == 1 ? 0 : static_cast<std::size_t>(action.chunk)];
    if (action.kind == ActionKind::forward) return costs.forward;
    if (action.kind == ActionKind::backward_input) return costs.backward_input;
    if (action.kind == ActionKind::backward_weight) return costs.backward_weight;
    return costs.backward_input + costs.backward_weight;
  }

  const Schedule& schedule_;
  const std::vector<ChunkCosts>& costs_;
  SimulationOptions options_;
  std::vector<Channel> activations_, gradients_;  // by receiving rank
  std::vector<double> now_;                       // by rank
  Simulation result_;
};

}  // namespace

Simulation simulate(const Schedule& schedule, const std::vector<ChunkCosts>& costs, const SimulationOptions& options) {
  return Simulator(schedule, costs, options).run();
}

}  // namespace baleen
