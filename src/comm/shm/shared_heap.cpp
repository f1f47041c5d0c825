#include "comm/shm/shared_heap.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "comm/shm/layout.h"

namespace baleen::shm {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page - 1) / page * page;
}

}  // namespace

SharedHeap::SharedHeap(std::shared_ptr<SharedRegion> region, int rank) : region_(std::move(region)) {
  const auto ranks = static_cast<std::size_t>(region_->world_size());
  const std::size_t each = region_->heap().size() / ranks / page * page;
  part_ = region_->heap().subspan(static_cast<std::size_t>(rank) * each, each);
  if (each != 0) free_.emplace(0, each);
}

void* SharedHeap::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = whole_pages(bytes);
  const auto hole = std::find_if(free_.begin(), free_.end(), [&](const auto& each) { return each.second >= wanted; });
  if (wanted == 0 || hole == free_.end()) return nullptr;
  const auto [begin, length] = *hole;
  free_.erase(hole);
  if (length > wanted) free_.emplace(begin + wanted, length - wanted);
  return part_.data() + begin;
}

void SharedHeap::release(void* data, std::size_t bytes) {
  BALEEN_CHECK(holds(data), "bytes", bytes);
  const std::lock_guard lock(mutex_);
  std::size_t begin = static_cast<std::size_t>(static_cast<std::byte*>(data) - part_.data()), length = whole_pages(bytes);
  region_->discard(part_.subspan(begin, length));
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && begin + length == next->first) {
    length += next->second;
    free_.erase(next);
  }
  const auto before = free_.lower_bound(begin);
  if (before != free_.begin()) {
    auto& [previous_begin, previous_length] = *std::prev(before);
    if (previous_begin + previous_length == begin) {
      previous_length += length;
      return;
    }
  }
  free_.emplace(begin, length);
}

bool SharedHeap::holds(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  return std::greater_equal<>()(at, part_.data()) && std::less<>()(at, part_.data() + part_.size());
}

}  // namespace baleen::shm
