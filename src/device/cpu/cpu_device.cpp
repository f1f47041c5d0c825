// The CPU as a device: anonymous mappings (huge pages asked for), streams that run inline.
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "device/device.h"

namespace baleen {
namespace {

class CpuStream final : public Stream {
 public:
  explicit CpuStream(bool measuring) : Stream(DeviceKind::cpu, measuring) {}
  Event record() override { return Event(); }  // work ran inline: already complete
  void wait(const Event& event) override { event.wait(); }
  void synchronize() override {}
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (!measuring() && bytes != 0) std::memmove(to, from, bytes);
  }
  void fill_zero(void* to, std::size_t bytes) override {
    if (!measuring() && bytes != 0) std::memset(to, 0, bytes);
  }
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::shared_ptr<SharedMemory> shared) : shared_(std::move(shared)) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string description() const override {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "CPU";
  }
  std::unique_ptr<Stream> create_stream() override { return std::make_unique<CpuStream>(false); }
  std::unique_ptr<Stream> create_measuring_stream() override { return std::make_unique<CpuStream>(true); }

 protected:
  void* allocate_bytes(std::size_t bytes) override {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    madvise(data, bytes, MADV_HUGEPAGE);  // advice only: a kernel without huge pages ignores it
    return data;
  }
  void* allocate_shared_bytes(std::size_t bytes) override {
    void* data = shared_ == nullptr ? nullptr : shared_->allocate(bytes);
    return data != nullptr ? data : allocate_bytes(bytes);
  }
  void free_bytes(void* data, std::size_t bytes) override {
    if (shared_ != nullptr && shared_->holds(data)) return shared_->release(data, bytes);
    munmap(data, bytes);
  }

 private:
  std::shared_ptr<SharedMemory> shared_;
};

}  // namespace

std::unique_ptr<Device> create_cpu_device(std::shared_ptr<SharedMemory> shared) {
  return std::make_unique<CpuDevice>(std::move(shared));
}

}  // namespace baleen
