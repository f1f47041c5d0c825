// A rank's part of the region's heap, handed out in pieces: memory that every rank of the job can read and write in place.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/shared_memory.h"
#include "launch/shared_region.h"

namespace baleen::shm {

// Pieces are whole pages, first fit. What is released reads as zeros again and costs no memory.
class SharedHeap final : public SharedMemory {
 public:
  SharedHeap(std::shared_ptr<SharedRegion> region, int rank);

  void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) override;
  bool holds(const void* data) const override;

 private:
  std::shared_ptr<SharedRegion> region_;
  std::span<std::byte> part_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // begin of each hole in the part, and its length
};

}  // namespace baleen::shm
