// The stages of ZeRO over the units of a model: what a training step calls around its passes and its optimizer.
#pragma once

#include <functional>
#include <utility>

#include "sharding/gradient_reduction.h"
#include "sharding/unit_access.h"
#include "sharding/weight_gathering.h"

namespace baleen {

class Sharding {
 public:
  // `storage` must be laid out for the group: shards = the size of group.reduce, shard = the rank there.
  Sharding(const DataGroup& group, UnitStorage& storage, ReduceOp op)
      : weights_(group, storage, waits_), gradients_(group, storage, op, waits_) {}

  // One pass over the units on the given stream, for the length of a scope.
  class Pass final : public UnitAccess {
   public:
    Pass(Sharding& sharding, ops::Context& compute) : sharding_(sharding), compute_(compute) {}
    void weights_needed(int unit, int next) override {
      sharding_.tell(unit, false);
      sharding_.weights_.needed(unit, next, compute_);
    }
    void weights_done(int unit) override { sharding_.weights_.done(unit, compute_); }
    void gradients_needed(int unit) override {
      sharding_.tell(unit, true);
      sharding_.gradients_.needed(unit, compute_);
    }
    void gradients_done(int unit) override { sharding_.gradients_.done(unit, compute_); }

   private:
    Sharding& sharding_;
    ops::Context& compute_;
  };

  // Hears, on the thread that runs a pass, which unit's weights the pass needs next or, with `backward`, which unit's gradients it adds to.
  using Observer = std::function<void(int unit, bool backward)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

  GradientReduction& gradients() { return gradients_; }
  WeightGathering& weights() { return weights_; }
  // Of other communication that the compute stream waits for, too.
  CommWaits& waits() { return waits_; }
  // CommWaits::nanoseconds().
  std::uint64_t exposed_nanoseconds() { return waits_.nanoseconds(); }

 private:
  void tell(int unit, bool backward) const {
    if (observer_) observer_(unit, backward);
  }

  Observer observer_;
  CommWaits waits_;
  WeightGathering weights_;
  GradientReduction gradients_;
};

}  // namespace baleen
