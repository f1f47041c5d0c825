#include "device/host_memory.h"

#include <sys/mman.h>

#include "device/gpu.h"

namespace baleen {
namespace {

// An untouchable piece of the address space: no page of it is ever there.
void* reserve(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

class CountingDevice final : public Device {
 public:
  explicit CountingDevice(Device& like) : like_(like) {}
  DeviceKind kind() const override { return like_.kind(); }
  std::string description() const override { return like_.description(); }
  std::unique_ptr<Stream> create_stream() override { return like_.create_measuring_stream(); }
  std::unique_ptr<Stream> create_measuring_stream() override { return like_.create_measuring_stream(); }

 protected:
  void* allocate_bytes(std::size_t bytes) override { return reserve(bytes); }
  void free_bytes(void* data, std::size_t bytes) override { munmap(data, bytes); }

 private:
  Device& like_;
};

class CountingHost final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override { return "host memory"; }
  std::unique_ptr<Stream> create_stream() override { return create_cpu_device()->create_measuring_stream(); }
  std::unique_ptr<Stream> create_measuring_stream() override { return create_stream(); }

 protected:
  void* allocate_bytes(std::size_t bytes) override { return reserve(bytes); }
  void free_bytes(void* data, std::size_t bytes) override { munmap(data, bytes); }
};

}  // namespace

std::unique_ptr<Device> create_host_memory(const Device& device) {
  if (dynamic_cast<const CountingDevice*>(&device) != nullptr) return std::make_unique<CountingHost>();
  return device.kind() == DeviceKind::gpu ? create_pinned_host() : create_cpu_device();
}

std::unique_ptr<Device> create_counting_device(Device& like) {
  return std::make_unique<CountingDevice>(like);
}

}  // namespace baleen
