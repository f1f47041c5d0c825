#include "device/timing.h"

#include <chrono>

#include "base/error.h"
#include "device/gpu.h"

namespace baleen {
namespace {

// Work of the processor runs as it is enqueued: it is done now.
class HostTime final : public EventState {
 public:
  bool ready() const override { return true; }
  void wait() override {}
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::chrono::steady_clock::time_point time_ = std::chrono::steady_clock::now();
};

}  // namespace

Event record_time(Stream& stream) {
  return stream.kind() == DeviceKind::gpu ? record_gpu_time(stream) : Event(std::make_shared<HostTime>());
}

double seconds_between(const Event& begin, const Event& end) {
  const auto* const from = dynamic_cast<const HostTime*>(begin.state());
  if (from == nullptr) return gpu_seconds_between(begin, end);
  const auto* const to = dynamic_cast<const HostTime*>(end.state());
  BALEEN_CHECK(to != nullptr, "times of two devices");
  return std::chrono::duration<double>(to->time() - from->time()).count();
}

}  // namespace baleen
