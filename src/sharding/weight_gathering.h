// Who has which weights when: after the optimizer has updated each rank's slice, and while a pass walks over the units.
#pragma once

#include <vector>

#include "ops/context.h"
#include "sharding/announced_memory.h"
#include "sharding/comm_waits.h"
#include "sharding/data_group.h"
#include "sharding/unit_storage.h"

namespace baleen {

// Stage 0: nothing to do, every rank updates all. Stages 1 and 2: publish() all-gathers every unit after the optimizer; the next pass
// waits for a unit just before it uses it. Stage 3: a unit is gathered into the pool one unit ahead of its use and may be overwritten
// afterwards; one that is still there, unchanged, is not gathered again (the head and the last block between forward and backward).
class WeightGathering {
 public:
  WeightGathering(const DataGroup& group, UnitStorage& storage, CommWaits& waits);
  // As GradientReduction's: gathers that nobody has waited for are aborted.
  ~WeightGathering();
  WeightGathering(const WeightGathering&) = delete;
  WeightGathering& operator=(const WeightGathering&) = delete;

  // See UnitAccess.
  void needed(int unit, int next, ops::Context& compute);
  void done(int unit, ops::Context& compute);
  // The optimizer has changed this rank's slices.
  void publish(Stream& compute);
  // Makes `compute` wait for everything published: afterwards all weights that the rank keeps are current.
  void settle(Stream& compute);

 private:
  void gather_into_pool(int unit, Stream& compute);

  DataGroup group_;
  UnitStorage& storage_;
  CommWaits& waits_;
  std::vector<Event> arrived_;  // by unit
  std::vector<bool> waiting_;   // by unit: arrived_ has not been waited for
  std::vector<bool> in_use_;    // by slot of the pool
  AnnouncedMemory announced_;
};

}  // namespace baleen
