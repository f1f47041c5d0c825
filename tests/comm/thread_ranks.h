// Ranks as threads of one test, over the same code and the same kind of memory as ranks that are processes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/shm/shm_world.h"

namespace baleen::testing {

// Runs body(world) on one thread a rank; rethrows the failure of the lowest rank that failed. A rank that throws aborts the world, so that
// the others end too.
inline void run_ranks(int size, const std::function<void(World&)>& body, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  auto worlds = create_thread_worlds(size, timeout);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < worlds.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(*worlds[rank]);
          if (::testing::Test::HasFatalFailure()) worlds[rank]->abort("an assertion of the test failed");
        } catch (const std::exception& error) {
          failures[rank] = std::current_exception();
          worlds[rank]->abort("a rank of the test failed: " + std::string(error.what()));
        }
      });
  }
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// The same with one communicator over all ranks.
inline void run_members(int size, const std::function<void(Communicator&)>& body,
                        std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  run_ranks(
      size,
      [&](World& world) {
        const auto communicator = world.create_communicator(all_ranks(size), "dp");
        body(*communicator);
      },
      timeout);
}

}  // namespace baleen::testing
