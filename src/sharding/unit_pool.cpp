#include "sharding/unit_pool.h"

#include <algorithm>

namespace baleen {

std::vector<int> pool_slots(int units, bool ends_share) {
  std::vector<int> slots;
  const int first_block_slot = ends_share ? 1 : 2;
  for (int unit = 0; unit < units; ++unit) {
    if (unit == 0)
      slots.push_back(0);
    else if (unit == units - 1)
      slots.push_back(ends_share ? 0 : 1);
    else
      slots.push_back(first_block_slot + unit % 2);
  }
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
  for (const std::size_t size : largest) slots_.push_back({device.allocate(name, size), -1});
}

void UnitPool::clear() {
  for (Slot& slot : slots_) slot.owner = -1;
}

}  // namespace baleen
