// Waits of the compute stream for communication, and the time they took.
#pragma once

#include <cstdint>
#include <deque>

#include "device/stream.h"

namespace baleen {

class CommWaits {
 public:
  // Makes `compute` wait for `event`.
  void wait(Stream& compute, const Event& event);
  // An operation has been enqueued that will be waited for later: at once where communication must not overlap computation.
  void started(Stream& compute, const Event& event) {
    if (!overlap_) wait(compute, event);
  }
  void set_overlap(bool overlap) { overlap_ = overlap; }
  bool overlap() const { return overlap_; }
  // How long the stream has stood still for waits since construction: of the processor the waits themselves; on a GPU, by its own clock,
  // those that it has got through, but for those inside a graph.
  std::uint64_t nanoseconds();

 private:
  struct Span {
    Event begin, end;
  };
  bool overlap_ = true;
  std::uint64_t nanoseconds_ = 0;
  std::deque<Span> under_way_;  // on a GPU
};

}  // namespace baleen
