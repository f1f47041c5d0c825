// Which buffer each activation and gradient between two chunks lies in, known before the first step.
#pragma once

#include <cstddef>
#include <vector>

#include "pipeline/schedule.h"

namespace baleen {

// Messages of one direction that a rank has written and that may still be on their way.
inline constexpr int outgoing_slots = 2;

// Of one rank. A slot is one [N, C] tensor. The input of a chunk keeps its slot from its arrival to the micro-batch's last backward; the
// gradient of an output until `backward` or `backward_weight`. There is one slot more than a table ever uses at once, so that the next
// message can arrive while all the others are in use; slots are taken in the order in which they became free.
struct BoundaryPlan {
  int micro_batches = 0, stages = 0;
  int activation_slots = 0, gradient_slots = 0;                    // of inputs and of outputs' gradients
  int outgoing_activation_slots = 0, outgoing_gradient_slots = 0;  // of outputs and of inputs' gradients, on their way
  // Of what forward saves for backward: exactly as many as there are pairs of chunk and micro-batch in flight, for whoever holds that.
  int saved_slots = 0;
  std::vector<int> activation, gradient, saved;  // by entry(); -1: has none

  std::size_t entry(int chunk, int micro_batch) const {
    return static_cast<std::size_t>(chunk / stages) * static_cast<std::size_t>(micro_batches) + static_cast<std::size_t>(micro_batch);
  }
  int slots() const { return activation_slots + gradient_slots + outgoing_activation_slots + outgoing_gradient_slots; }
};

// The schedule must be without fault (find_fault).
BoundaryPlan plan_boundary(const Schedule& schedule, int rank);

}  // namespace baleen
