#include "device/timing.h"

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
  if (stream.measuring()) return {};
  return stream.kind() == DeviceKind::gpu ? record_gpu_time(stream) : Event(std::make_shared<HostTime>());
}

double seconds_between(const Event& begin, const Event& end) {
  const auto* const from = dynamic_cast<const HostTime*>(begin.state());
  if (from == nullptr) return gpu_seconds_between(begin, end);
  const auto* const to = dynamic_cast<const HostTime*>(end.state());
  BALEEN_CHECK(to != nullptr, "times of two devices");
  return std::chrono::duration<double>(to->time() - from->time()).count();
}

// What is enqueued on an empty stream is reached before the host has heard of it, by microseconds.
void DeviceClock::compare() {
  if (stream_ == nullptr) stream_ = device_.create_stream();
  compared_ = record_time(*stream_);
  compared_.wait();
  compared_at_ = std::chrono::steady_clock::now();
}

std::chrono::steady_clock::time_point DeviceClock::time_of(const Event& event) {
  if (const auto* const host = dynamic_cast<const HostTime*>(event.state())) return host->time();
  if (stream_ == nullptr || std::chrono::steady_clock::now() - compared_at_ > std::chrono::minutes(1)) compare();
  const std::chrono::duration<double> later(seconds_between(compared_, event));
  return compared_at_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(later);
}

}  // namespace baleen
