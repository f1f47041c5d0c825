#include "sharding/unit_pool.h"

#include <algorithm>
#include <array>
#include <map>

namespace baleen {

std::vector<int> pool_slots(const std::vector<UnitDescription>& units, bool ends_share) {
  std::vector<int> slots;
  int blocks = 0, embedding = -1, head = -1, used = 0;
  std::array<int, 2> block_slots{-1, -1};
  const auto slot = [&](int& of) {
    if (of < 0) of = used++;
    return of;
  };
  for (const UnitDescription& unit : units) {
    if (unit.kind == UnitKind::block)
      slots.push_back(slot(block_slots[static_cast<std::size_t>(blocks++ % 2)]));
    else
      slots.push_back(slot(unit.kind == UnitKind::embedding || ends_share ? embedding : head));
  }
  return slots;
}

std::vector<int> chunk_slots(const std::vector<UnitDescription>& units) {
  std::map<int, int> of_chunk;  // how many units each chunk has
  std::vector<int> place;       // of a unit in its chunk
  int most = 0;
  for (const UnitDescription& unit : units) {
    place.push_back(of_chunk[unit.chunk]++);
    most = std::max(most, of_chunk[unit.chunk]);
  }
  std::vector<int> slots;
  for (std::size_t unit = 0; unit < units.size(); ++unit) slots.push_back(units[unit].chunk % 2 * most + place[unit]);
  return slots;
}

UnitPool::UnitPool(Device& device, const std::string& name, const std::vector<std::size_t>& bytes, std::vector<int> slot_of_unit)
    : slot_of_unit_(std::move(slot_of_unit)) {
  std::vector<std::size_t> largest;
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
    const auto slot = static_cast<std::size_t>(slot_of_unit_[unit]);
    if (slot >= largest.size()) largest.resize(slot + 1);
    largest[slot] = std::max(largest[slot], bytes[unit]);
  }
  for (const std::size_t size : largest) slots_.push_back({device.allocate_shared(name, size), -1});
}

void UnitPool::clear() {
  for (Slot& slot : slots_) slot.owner = -1;
}

}  // namespace baleen
