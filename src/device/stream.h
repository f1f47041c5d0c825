// An ordered queue of work on a device. On the CPU work runs inline, on the calling thread and its OpenMP team; a measuring stream runs
// nothing and is how the same code states the memory it needs before any is bound (see Arena).
#pragma once

#include <cstddef>

#include "device/event.h"

namespace baleen {

enum class DeviceKind { cpu, gpu };

class Stream {
 public:
  virtual ~Stream() = default;
  DeviceKind kind() const { return kind_; }
  // True in a dry run: operations return at once and touch no memory.
  bool measuring() const { return measuring_; }

  // An event that completes when everything enqueued so far has.
  virtual Event record() = 0;
  // Work enqueued after this call starts after `event`. On the CPU the calling thread waits (and rethrows a failure).
  virtual void wait(const Event& event) = 0;
  // Blocks the host until everything enqueued so far is done.
  virtual void synchronize() = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill_zero(void* to, std::size_t bytes) = 0;

 protected:
  Stream(DeviceKind kind, bool measuring) : kind_(kind), measuring_(measuring) {}

 private:
  DeviceKind kind_;
  bool measuring_;
};

}  // namespace baleen
