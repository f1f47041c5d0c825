// What a pass over a model's units tells whoever holds their memory: the moments at which weights must be readable and gradients writable.
#pragma once

namespace baleen {

// A pass calls these in the same order on every rank. Between needed and done a unit's views (UnitStorage::weight, gradient) are valid.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;

  // The weights of `unit` are about to be read. `next`: the unit whose weights will be needed after it, or -1; it may be fetched ahead.
  virtual void weights_needed(int unit, int next) = 0;
  virtual void weights_done(int unit) = 0;
  // Gradients of one micro-batch are about to be added to the unit's; then: all of them have been.
  virtual void gradients_needed(int unit) = 0;
  virtual void gradients_done(int unit) = 0;
};

// Where every rank holds everything and nothing is summed: inference, dry runs of layers, tests.
class WholeUnits final : public UnitAccess {
 public:
  void weights_needed(int, int) override {}
  void weights_done(int) override {}
  void gradients_needed(int) override {}
  void gradients_done(int) override {}
};

}  // namespace baleen
