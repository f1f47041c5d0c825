// The built-in backend: ranks of one machine over one shared region, as processes or, in tests, as threads.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "launch/shared_region.h"

namespace baleen {

// The largest world of the built-in backend.
inline constexpr int max_shm_ranks = 64;

class ShmWorld final : public World {
 public:
  // `timeout` bounds every wait for another rank. Throws Error(bad_config) for more ranks than max_shm_ranks.
  ShmWorld(std::shared_ptr<SharedRegion> region, int rank, std::chrono::milliseconds timeout);

  int rank() const override { return rank_; }
  int size() const override { return region_->world_size(); }
  std::string backend() const override { return "shm"; }
  std::unique_ptr<Communicator> create_communicator(const std::vector<int>& ranks, const std::string& name) override;
  std::shared_ptr<SharedMemory> shared_memory() override { return heap_; }
  void abort(const std::string& reason) override { region_->abort_cell().raise(reason); }

 private:
  std::shared_ptr<SharedRegion> region_;
  std::shared_ptr<SharedMemory> heap_;  // this rank's part
  int rank_;
  std::chrono::milliseconds timeout_;
  std::uint64_t calls_ = 0;  // of create_communicator: picks the same window on every rank
};

// A job of `size` ranks inside this process, for tests: entry r belongs to the thread that is rank r.
std::vector<std::unique_ptr<World>> create_thread_worlds(int size, std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace baleen
