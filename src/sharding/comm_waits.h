// Waits of the compute stream for communication, and the host time they took.
#pragma once

#include <chrono>
#include <cstdint>

#include "device/stream.h"

namespace baleen {

class CommWaits {
 public:
  // Makes `compute` wait for `event`.
  void wait(Stream& compute, const Event& event) {
    const auto begin = std::chrono::steady_clock::now();
    compute.wait(event);
    nanoseconds_ += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  }
  // An operation has been enqueued that will be waited for later: at once where communication must not overlap computation.
  void started(Stream& compute, const Event& event) {
    if (!overlap_) wait(compute, event);
  }
  void set_overlap(bool overlap) { overlap_ = overlap; }
  bool overlap() const { return overlap_; }
  std::uint64_t nanoseconds() const { return nanoseconds_; }

 private:
  bool overlap_ = true;
  std::uint64_t nanoseconds_ = 0;
};

}  // namespace baleen
