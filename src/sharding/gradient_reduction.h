// Data parallelism: the sum of gradients over the ranks of an axis, unit by unit, while backward goes on.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "device/stream.h"
#include "sharding/unit_storage.h"

namespace baleen {

// ZeRO stage 0: every rank ends with the whole sum. The built-in ring writes an all-reduce as reduce-scatter + all-gather over the
// slices of UnitLayout, so the later stages, which drop one half of it, see the same bits.
class GradientReduction {
 public:
  // `op`: sum when the loss is scaled by 1 / (valid tokens of the global batch), avg when by size / that.
  GradientReduction(Communicator& axis, UnitStorage& storage, ReduceOp op);
  // Reductions that nobody has waited for (a step that failed half-way) are aborted first: they use memory that is about to go.
  ~GradientReduction();
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  // Enqueues the reduction of a unit whose gradient is complete at the end of `compute`. Every rank calls it in the same order.
  void reduce(int unit, Stream& compute);
  // Makes `compute` wait for every reduction since the last call.
  void wait(Stream& compute);

 private:
  Communicator& axis_;
  UnitStorage& storage_;
  ReduceOp op_;
  std::vector<Event> pending_;
};

}  // namespace baleen
