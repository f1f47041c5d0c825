#include "comm/shm/layout.h"

#include <algorithm>

#include "base/error.h"

namespace baleen::shm {
namespace {

constexpr std::size_t channel_bytes = page + slots * slot_bytes;
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

}  // namespace

Layout::Layout(const SharedRegion& region) : payload_(region.payload()) {
  const auto world = static_cast<std::size_t>(region.world_size());
  table_bytes_ = (max_windows * sizeof(WindowState) + page - 1) / page * page;
  block_bytes_ = page + 2 * note_bytes + world * channel_bytes;
  window_bytes_ = world * block_bytes_;
  windows_ = static_cast<std::uint32_t>(std::min<std::size_t>(max_windows, (payload_.size() - table_bytes_) / window_bytes_));
  BALEEN_CHECK(windows_ >= 1, "region bytes", payload_.size(), "window bytes", window_bytes_);
}

WindowState& Layout::state(std::uint32_t window) const {
  return reinterpret_cast<WindowState*>(payload_.data())[window];
}

std::span<std::byte> Layout::window(std::uint32_t window) const {
  return payload_.subspan(table_bytes_ + window * window_bytes_, window_bytes_);
}

std::byte* Layout::block(std::uint32_t window, int rank) const {
  return payload_.data() + table_bytes_ + window * window_bytes_ + static_cast<std::size_t>(rank) * block_bytes_;
}

MemberControl& Layout::member(std::uint32_t window, int rank) const {
  return *reinterpret_cast<MemberControl*>(block(window, rank));
}

std::byte* Layout::note(std::uint32_t window, int rank, int place) const {
  return block(window, rank) + page + static_cast<std::size_t>(place) * note_bytes;
}

ChannelControl& Layout::channel(std::uint32_t window, int from, int to) const {
  return *reinterpret_cast<ChannelControl*>(block(window, from) + page + 2 * note_bytes + static_cast<std::size_t>(to) * channel_bytes);
}

std::byte* Layout::slot(std::uint32_t window, int from, int to, std::uint32_t slot) const {
  return reinterpret_cast<std::byte*>(&channel(window, from, to)) + page + slot * slot_bytes;
}

}  // namespace baleen::shm
