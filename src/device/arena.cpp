#include "device/arena.h"

#include "base/error.h"

namespace baleen {

void Arena::bind(void* base, std::size_t bytes) {
  BALEEN_CHECK(used_ == 0, "bytes in use", used_);
  base_ = static_cast<std::byte*>(base);
  capacity_ = bytes;
}

void* Arena::allocate(std::string_view name, std::size_t bytes) {
  const std::size_t start = used_;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  used_ += rounded;
  if (base_ != nullptr) {
    BALEEN_CHECK(used_ <= capacity_, "name", name, "used", used_, "capacity", capacity_);
    peak_ = std::max(peak_, used_);
    return base_ + start;
  }
  live_[start] = {std::string(name), rounded};
  if (used_ > peak_) {
    peak_ = used_;
    peak_by_name_.clear();
    for (const auto& [begin, entry] : live_) peak_by_name_[entry.first] += entry.second;
  }
  return nullptr;
}

void Arena::release(std::size_t mark) {
  BALEEN_CHECK(mark <= used_, mark, used_);
  used_ = mark;
  if (base_ == nullptr) live_.erase(live_.lower_bound(mark), live_.end());
}

}  // namespace baleen
