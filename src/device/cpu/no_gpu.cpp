// What device/gpu.h says in a build without GPU support.
#include <limits>

#include "base/error.h"
#include "device/gpu.h"

namespace baleen {

void prepare_gpus() {}

GpuList list_gpus() {
  return {{}, "this build has no GPU support"};
}

bool gpu_available() {
  return false;
}

bool is_gpu_memory(const void*) {
  return false;
}

std::unique_ptr<Device> create_gpu_device(int, const GpuOptions&) {
  throw Error(ExitCode::bad_config, "this build has no GPU support", "training.device",
              "use device = \"cpu\", or build where the GPU compiler is found (see README.md)");
}

std::unique_ptr<Device> create_pinned_host() {
  return create_cpu_device();
}

std::uint64_t host_waits(const Device&) {
  return 0;
}

Event record_gpu_time(Stream&) {
  BALEEN_CHECK(false, "no GPU in this build");
  return {};
}

double gpu_seconds_between(const Event&, const Event&) {
  BALEEN_CHECK(false, "no GPU in this build");
  return 0;
}

std::unique_ptr<Stream> create_urgent_stream(Device& device) {
  return device.create_stream();
}

std::size_t free_bytes(const Device&) {
  return std::numeric_limits<std::size_t>::max();
}

std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>&) {
  BALEEN_CHECK(stream.kind() == DeviceKind::gpu, "graphs are recorded from GPU streams");
  return nullptr;
}

}  // namespace baleen
