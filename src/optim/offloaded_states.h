// Optimizer states in host memory, brought to the device piece by piece (J. Ren et al., "ZeRO-Offload", arXiv 2101.06840, keeps them in
// host memory as well; there the host updates them).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "sharding/unit_storage.h"

namespace baleen {

// States of the elements `range` of a unit, [range] each, in device memory.
struct StatesPiece {
  int unit = 0;
  SliceRange range;
  Tensor master, exp_avg, exp_avg_sq;
};

// While one piece is updated, the next ones come and those before go back, on streams of their own: with 12 bytes an element each way over
// one link in both directions at once, that is the time an update takes.
class OffloadedStates {
 public:
  OffloadedStates(Device& device, const UnitStorage& units, std::size_t piece_elements = std::size_t{1} << 25);

  // Enqueues `update` of every piece on `compute`, which afterwards waits until all states are back in host memory.
  void for_each(Stream& compute, const std::function<void(const StatesPiece&)>& update);

 private:
  static constexpr std::size_t slots = 3;
  StatesPiece in_host_memory(int unit, SliceRange range) const;
  void copy(const StatesPiece& to, const StatesPiece& from, Stream& stream) const;

  const UnitStorage& units_;
  std::vector<StatesPiece> pieces_;  // where they are kept; in order
  std::size_t slot_elements_ = 0;
  Buffer staging_;
  std::unique_ptr<Stream> in_, out_;
  std::vector<Event> back_;  // by slot: what used it last is in host memory again
};

}  // namespace baleen
