#include "comm/shm/shm_world.h"

#include <algorithm>

#include "base/error.h"
#include "comm/operation.h"
#include "comm/shm/shared_heap.h"
#include "comm/shm/shm_communicator.h"
#include "comm/shm/tenancy.h"

namespace baleen {
ShmWorld::ShmWorld(std::shared_ptr<SharedRegion> region, int rank, std::chrono::milliseconds timeout)
    : region_(std::move(region)), rank_(rank), timeout_(timeout) {
  BALEEN_CHECK(rank >= 0 && rank < size(), "rank", rank, "size", size());
  if (size() > max_shm_ranks)
    throw Error(ExitCode::bad_config,
                std::to_string(size()) + " ranks are more than the built-in backend's " + std::to_string(max_shm_ranks), "backend \"shm\"",
                "use fewer ranks on a machine, or backend \"mpi\" under mpirun or \"tcp\" under torchrun or srun");
  heap_ = std::make_shared<shm::SharedHeap>(region_, rank);
}

std::unique_ptr<Communicator> ShmWorld::create_communicator(const std::vector<int>& ranks, const std::string& name) {
  auto tenancy = std::make_unique<shm::Tenancy>(region_, calls_, name, timeout_);
  const std::uint64_t call = calls_++;
  if (ranks.empty()) return nullptr;  // and leaves the window at once
  BALEEN_CHECK(std::is_sorted(ranks.begin(), ranks.end()) && std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end(), "name", name);
  BALEEN_CHECK(ranks.front() >= 0 && ranks.back() < size(), "first", ranks.front(), "last", ranks.back(), "world", size());
  const auto here = std::find(ranks.begin(), ranks.end(), rank_);
  BALEEN_CHECK(here != ranks.end(), "rank", rank_, "is not in its own group", name);
  return std::make_unique<shm::ShmCommunicator>(std::move(tenancy), ranks, static_cast<int>(here - ranks.begin()), name,
                                                group_signature(ranks, name, call), timeout_);
}

std::vector<std::unique_ptr<World>> create_thread_worlds(int size, std::chrono::milliseconds timeout) {
  const auto region = SharedRegion::create(size);
  std::vector<std::unique_ptr<World>> worlds;
  for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_unique<ShmWorld>(region, rank, timeout));
  return worlds;
}

}  // namespace baleen
