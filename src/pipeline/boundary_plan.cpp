#include "pipeline/boundary_plan.h"

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace baleen {
namespace {

// Slots of one kind: those free, in the order in which they became so.
class SlotQueue {
 public:
  explicit SlotQueue(int slots) {
    for (int slot = 0; slot < slots; ++slot) free_.push_back(slot);
  }
  int take() {
    BALEEN_CHECK(!free_.empty());
    const int slot = free_.front();
    free_.pop_front();
    return slot;
  }
  void give_back(int slot) { free_.push_back(slot); }

 private:
  std::deque<int> free_;
};

// What a table does with one kind of slot, in its order: entry >= 0 takes one for the entry, -1 - entry gives it back.
struct Uses {
  std::vector<std::ptrdiff_t> events;
  int now = 0, most = 0, taken = 0;

  void take(std::size_t entry) {
    events.push_back(static_cast<std::ptrdiff_t>(entry));
    most = std::max(most, ++now);
    ++taken;
  }
  void give_back(std::size_t entry) {
    events.push_back(-1 - static_cast<std::ptrdiff_t>(entry));
    --now;
  }
  std::vector<int> assign(int slots, std::size_t entries) const {
    SlotQueue queue(slots);
    std::vector<int> out(entries, -1);
    for (const std::ptrdiff_t event : events) {
      if (event >= 0)
        out[static_cast<std::size_t>(event)] = queue.take();
      else
        queue.give_back(out[static_cast<std::size_t>(-1 - event)]);
    }
    return out;
  }
};

}  // namespace

BoundaryPlan plan_boundary(const Schedule& schedule, int rank) {
  BoundaryPlan plan;
  plan.micro_batches = schedule.micro_batches;
  plan.stages = schedule.stages;
  Uses activations, gradients, saved;
  int activations_sent = 0, gradients_sent = 0;
  // A rank that is alone hands its chunks' outputs on without a message.
  const bool alone = schedule.stages == 1;
  for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
    const int chunk = action.chunk, i = action.micro_batch;
    if (action.kind == ActionKind::recv_activation) activations.take(plan.entry(chunk, i));
    if (action.kind == ActionKind::recv_gradient) gradients.take(plan.entry(chunk, i));
    if (action.kind == ActionKind::send_activation) ++activations_sent;
    if (action.kind == ActionKind::send_gradient) ++gradients_sent;
    if (action.kind == ActionKind::forward) {
      saved.take(plan.entry(chunk, i));
      if (alone && !schedule.last(chunk)) activations.take(plan.entry(chunk + 1, i));
    }
    if (action.first_backward() && alone && !schedule.first(chunk)) gradients.take(plan.entry(chunk - 1, i));
    if (schedule.ends(action)) {
      saved.give_back(plan.entry(chunk, i));
      if (!schedule.first(chunk)) activations.give_back(plan.entry(chunk, i));
      if (action.last_backward() && !schedule.last(chunk)) gradients.give_back(plan.entry(chunk, i));
    }
  }
  const auto entries = static_cast<std::size_t>(schedule.virtual_stages) * static_cast<std::size_t>(schedule.micro_batches);
  plan.activation_slots = std::min(activations.taken, activations.most + 1);
  plan.gradient_slots = std::min(gradients.taken, gradients.most + 1);
  plan.saved_slots = saved.most;
  plan.activation = activations.assign(plan.activation_slots, entries);
  plan.gradient = gradients.assign(plan.gradient_slots, entries);
  plan.saved = saved.assign(plan.saved_slots, entries);
  plan.outgoing_activation_slots = std::min(activations_sent, outgoing_slots);
  plan.outgoing_gradient_slots = std::min(gradients_sent, outgoing_slots);
  return plan;
}

}  // namespace baleen
