#include "comm/shm/tenancy.h"

#include <fmt/format.h>

#include <thread>

#include "base/error.h"

namespace baleen::shm {

Tenancy::Tenancy(std::shared_ptr<SharedRegion> region, std::uint64_t call, const std::string& name, std::chrono::milliseconds timeout)
    : region_(std::move(region)),
      layout_(*region_),
      window_(static_cast<std::uint32_t>(call % layout_.windows())),
      generation_(static_cast<std::uint32_t>(call / layout_.windows())) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (layout_.state(window_).generation.load(std::memory_order_acquire) != generation_) {
    if (region_->abort_cell().raised())
      throw Error(ExitCode::rank_failed, region_->abort_cell().reason(), "creating communicator '" + name + "'");
    if (std::chrono::steady_clock::now() > deadline)
      throw Error(ExitCode::rank_failed,
                  fmt::format("no room for communicator '{}': {} are still open on some rank", name, layout_.windows()), "",
                  "close communicators that are no longer used");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // rare: a window comes round again after all the others
  }
}

Tenancy::~Tenancy() {
  WindowState& state = layout_.state(window_);
  const std::uint32_t left = state.departed.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (left < static_cast<std::uint32_t>(region_->world_size())) return;
  region_->discard(layout_.window(window_));
  state.departed.store(0, std::memory_order_relaxed);
  state.generation.store(generation_ + 1, std::memory_order_release);
}

}  // namespace baleen::shm
