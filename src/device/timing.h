// When work on a stream got somewhere: on a GPU by its own clock, since the host may be far ahead.
#pragma once

#include <chrono>
#include <memory>

#include "device/device.h"

namespace baleen {

// An event that also knows when it was reached. In a dry run and while a graph is recorded an empty one, which knows nothing.
Event record_time(Stream& stream);
// From one such event to another of the same device; both must be complete.
double seconds_between(const Event& begin, const Event& end);

// Tells by the host's clock when such events of a device were reached, so that times of several devices can be compared. A GPU's clock is
// compared with the host's at least once a minute, which waits for an empty stream of its own.
class DeviceClock {
 public:
  explicit DeviceClock(Device& device) : device_(device) {}
  // `event` must be complete.
  std::chrono::steady_clock::time_point time_of(const Event& event);

 private:
  void compare();

  Device& device_;
  std::unique_ptr<Stream> stream_;  // made when first needed
  Event compared_;
  std::chrono::steady_clock::time_point compared_at_;
};

}  // namespace baleen
