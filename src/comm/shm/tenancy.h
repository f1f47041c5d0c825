// A rank's use of a window of the shared region, for as long as its communicator lives.
//
// Which window a communicator gets follows from the number of the create_communicator call alone, so that ranks need not talk to agree. A
// window is used again, empty, only when every rank of the world has left it, those included that took no part in it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/shm/layout.h"

namespace baleen::shm {

class Tenancy {
 public:
  // Waits until the window's previous tenants have left. Throws Error(rank_failed) after `timeout` or when the job is aborted.
  Tenancy(std::shared_ptr<SharedRegion> region, std::uint64_t call, const std::string& name, std::chrono::milliseconds timeout);
  // Leaves; the last rank to leave gives the memory back.
  ~Tenancy();
  Tenancy(const Tenancy&) = delete;
  Tenancy& operator=(const Tenancy&) = delete;

  std::uint32_t window() const { return window_; }
  const std::shared_ptr<SharedRegion>& region() const { return region_; }

 private:
  std::shared_ptr<SharedRegion> region_;
  Layout layout_;
  std::uint32_t window_, generation_;
};

}  // namespace baleen::shm
