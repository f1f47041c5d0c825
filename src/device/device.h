// Where memory and streams come from. Every allocation has a name, so that "what fills the memory?" has an answer.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/shared_memory.h"
#include "device/stream.h"

namespace baleen {

class Device;

// Owns a named piece of device memory, zero-filled, aligned to at least 256 bytes. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  friend class Device;
  Buffer(Device* device, void* data, std::size_t bytes, std::string name);
  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::string name_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // For logs and reports: the processor's or GPU's name.
  virtual std::string description() const = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // A stream of this device's kind that runs nothing.
  virtual std::unique_ptr<Stream> create_measuring_stream() = 0;

  // Throws Error (ExitCode::out_of_memory) listing what is allocated when the memory cannot be had.
  Buffer allocate(const std::string& name, std::size_t bytes);
  // The same for what other ranks will read or write: gradients, gathered weights. Where the device has memory that ranks share, their
  // collectives then need no copies in between.
  Buffer allocate_shared(const std::string& name, std::size_t bytes);
  // Bytes now held under each name, and the largest total ever held.
  std::map<std::string, std::size_t> allocations() const;
  std::size_t peak_bytes() const;

 protected:
  // nullptr when the memory cannot be had.
  virtual void* allocate_bytes(std::size_t bytes) = 0;
  virtual void* allocate_shared_bytes(std::size_t bytes) { return allocate_bytes(bytes); }
  virtual void free_bytes(void* data, std::size_t bytes) = 0;

 private:
  friend class Buffer;
  Buffer hold(void* data, const std::string& name, std::size_t bytes);
  void release(void* data, std::size_t bytes, const std::string& name);
  mutable std::mutex mutex_;
  std::map<std::string, std::size_t> held_;
  std::size_t held_bytes_ = 0, peak_bytes_ = 0;
};

// `shared`: where allocate_shared() takes memory from; nullptr: its own.
std::unique_ptr<Device> create_cpu_device(std::shared_ptr<SharedMemory> shared = nullptr);

}  // namespace baleen
