#include "sharding/comm_waits.h"

#include <chrono>
#include <utility>

#include "device/timing.h"

namespace baleen {

void CommWaits::wait(Stream& compute, const Event& event) {
  if (compute.kind() == DeviceKind::cpu) {
    const auto begin = std::chrono::steady_clock::now();
    compute.wait(event);
    nanoseconds_ += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
    return;
  }
  constexpr std::size_t many = 4096;  // where nobody asks
  if (under_way_.size() >= many) nanoseconds();
  Event begin = record_time(compute);
  compute.wait(event);
  if (begin.state() != nullptr) under_way_.push_back({std::move(begin), record_time(compute)});
}

std::uint64_t CommWaits::nanoseconds() {
  for (; !under_way_.empty() && under_way_.front().end.ready(); under_way_.pop_front())
    nanoseconds_ += static_cast<std::uint64_t>(1e9 * seconds_between(under_way_.front().begin, under_way_.front().end));
  return nanoseconds_;
}

}  // namespace baleen
