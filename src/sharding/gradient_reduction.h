// The sum of gradients over the ranks of data parallelism, unit by unit, while backward goes on.
#pragma once

#include <vector>

#include "ops/context.h"
#include "sharding/announced_memory.h"
#include "sharding/comm_waits.h"
#include "sharding/data_group.h"
#include "sharding/unit_storage.h"

namespace baleen {

// Every stage sums each slice of UnitLayout in the same ring order (docs/numerics.md), so all give the same bits:
//   0     all-reduce of the unit, once a step                       every rank ends with the whole sum
//   1     reduce-scatter, once a step                               each rank ends with the sum of its slice
//   2, 3  reduce-scatter every micro-step, from the gradient pool   the slice accumulates over micro-steps
// Across replicas (HSDP) the owned slice is then all-reduced. Before that, the gradients of parameters of which other ranks of axis tp hold
// copies, and computed parts, are summed over these; and at the end those of an embedding tied across pipeline stages.
class GradientReduction {
 public:
  // `op`: sum when the loss is scaled by 1 / (valid tokens of the global batch), avg when by size / that.
  GradientReduction(const DataGroup& group, UnitStorage& storage, ReduceOp op, CommWaits& waits);
  // Reductions that nobody has waited for (a step that failed half-way) are aborted first: they use memory that is about to go.
  ~GradientReduction();
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  // Gradients start from zero.
  void begin_step(Stream& compute);
  // `last`: no other micro-step of this step follows.
  void begin_micro_step(bool last) { last_ = last; }
  // The unit's gradients are about to be added to, and are complete for this micro-step. Every rank calls these in the same order.
  void needed(int unit, ops::Context& compute);
  void done(int unit, ops::Context& compute);
  // Makes `compute` wait for every reduction of the step. Afterwards UnitStorage::updated_gradients are sums over the whole group.
  void wait(ops::Context& compute);

 private:
  // A slot of the gradient pool whose unit is being reduced.
  struct InFlight {
    int unit = -1;
    Event reduced;
    bool add = false;   // to what former micro-steps left in the slice
    bool last = false;  // of the step
  };

  bool alone() const { return group_.reduce.alone() && group_.replicas == nullptr; }
  // The sums over copies of the unit's gradients, `gradients` [trainable elements].
  Event sum_copies(int unit, const Tensor& gradients, Event filled);
  void sum_tied(ops::Context& compute);
  Event reduce_whole(int unit, Event filled);
  Event reduce_to_slice(int unit, Event filled);
  void finish(InFlight& in_flight, ops::Context& compute);
  // This rank's slice inside the unit's gradients in the pool.
  Tensor pool_slice(int unit) const;

  DataGroup group_;
  UnitStorage& storage_;
  ReduceOp op_;
  CommWaits& waits_;
  bool last_ = true;
  std::vector<Event> pending_;
  std::vector<InFlight> in_flight_;    // one a slot of the pool
  std::vector<bool> slice_has_value_;  // a micro-step of this step has written the unit's slice
  AnnouncedMemory announced_;
};

}  // namespace baleen
