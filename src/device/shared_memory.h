// Memory that other ranks of the job can read and write in place, when a backend has such.
#pragma once

#include <cstddef>

namespace baleen {

// Any thread may call any method.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  // Zero-filled, at a page boundary; nullptr when there is no room.
  virtual void* allocate(std::size_t bytes) = 0;
  // What allocate() gave, with the size it was asked for.
  virtual void release(void* data, std::size_t bytes) = 0;
  // Whether `data` lies in memory that allocate() may give out.
  virtual bool holds(const void* data) const = 0;
};

}  // namespace baleen
