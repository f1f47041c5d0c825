// Memory for a few whole units at a time, which all units take turns in: gathered weights and full gradients of sharded stages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"
#include "sharding/parameter.h"

namespace baleen {

// The slot of each unit. Blocks take turns in two slots, so that one can be filled while the other is used. Embedding and head share a slot
// where they are never in use together.
std::vector<int> pool_slots(const std::vector<UnitDescription>& units, bool ends_share);
// Under a pipeline: room for two whole chunks (one, where the rank has one), which chunks take turns in. What one micro-batch has gathered
// serves the others that run on the chunk before another chunk needs the room.
std::vector<int> chunk_slots(const std::vector<UnitDescription>& units);

class UnitPool {
 public:
  UnitPool() = default;
  // `bytes` of each unit when whole; a slot is as large as the largest unit that uses it.
  UnitPool(Device& device, const std::string& name, const std::vector<std::size_t>& bytes, std::vector<int> slot_of_unit);

  int slots() const { return static_cast<int>(slots_.size()); }
  int slot(int unit) const { return slot_of_unit_[static_cast<std::size_t>(unit)]; }
  // The unit whose data the slot holds, or -1.
  int owner(int slot) const { return slots_[static_cast<std::size_t>(slot)].owner; }
  bool holds(int unit) const { return owner(slot(unit)) == unit; }
  void set_owner(int slot, int unit) { slots_[static_cast<std::size_t>(slot)].owner = unit; }
  // Forgets what all slots hold.
  void clear();
  // The memory of the unit's slot, whoever owns it.
  void* memory(int unit) const { return slots_[static_cast<std::size_t>(slot(unit))].memory.data(); }
  const Buffer& buffer(int slot) const { return slots_[static_cast<std::size_t>(slot)].memory; }

 private:
  struct Slot {
    Buffer memory;
    int owner = -1;
  };
  std::vector<Slot> slots_;
  std::vector<int> slot_of_unit_;
};

}  // namespace baleen
