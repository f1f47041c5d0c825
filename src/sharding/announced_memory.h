// What communicators have been told about memory that they will use again and again (Communicator::announce).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "sharding/unit_pool.h"

namespace baleen {

// Ends with this object, which must go before the memory and the communicators.
class AnnouncedMemory {
 public:
  void add(Communicator& axis, const Buffer& memory, MemoryUse use) {
    if (memory.bytes() == 0) return;
    if (auto announced = axis.announce(memory.data(), memory.bytes(), use)) announced_.push_back(std::move(announced));
  }
  void add(Communicator& axis, const UnitPool& pool, MemoryUse use) {
    for (int slot = 0; slot < pool.slots(); ++slot) add(axis, pool.buffer(slot), use);
  }

 private:
  std::vector<std::shared_ptr<void>> announced_;
};

}  // namespace baleen
