#include "device/device.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace baleen {

Buffer::Buffer(Device* device, void* data, std::size_t bytes, std::string name)
    : device_(device), data_(data), bytes_(bytes), name_(std::move(name)) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      name_(std::move(other.name_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    this->~Buffer();
    new (this) Buffer(std::move(other));
  }
  return *this;
}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->release(data_, bytes_, name_);
}

Buffer Device::allocate(const std::string& name, std::size_t bytes) {
  return bytes == 0 ? Buffer() : hold(allocate_bytes(bytes), name, bytes);
}

Buffer Device::allocate_shared(const std::string& name, std::size_t bytes) {
  return bytes == 0 ? Buffer() : hold(allocate_shared_bytes(bytes), name, bytes);
}

Buffer Device::hold(void* data, const std::string& name, std::size_t bytes) {
  if (data == nullptr) {
    std::string held;
    for (const auto& [held_name, held_size] : allocations()) held += fmt::format("\n    {:>14} bytes  {}", held_size, held_name);
    if (!held.empty()) held = "; held already:" + held;
    throw Error(ExitCode::out_of_memory, fmt::format("cannot allocate {} bytes for '{}'{}", bytes, name, held), description(),
                "use a smaller micro_batch_size or sequence_length, or more ranks");
  }
  const std::lock_guard lock(mutex_);
  held_[name] += bytes;
  held_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  return Buffer(this, data, bytes, name);
}

void Device::release(void* data, std::size_t bytes, const std::string& name) {
  free_bytes(data, bytes);
  const std::lock_guard lock(mutex_);
  held_bytes_ -= bytes;
  const auto found = held_.find(name);
  found->second -= bytes;
  if (found->second == 0) held_.erase(found);
}

std::map<std::string, std::size_t> Device::allocations() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::size_t Device::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace baleen
