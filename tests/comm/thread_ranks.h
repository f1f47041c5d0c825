// Ranks as threads of one test, over the same code and the same kind of memory as ranks that are processes. Where mpi_test.cpp runs this
// program under mpirun, the same tests find one rank of MPI in each process instead.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/mpi/mpi_world.h"
#include "comm/shm/shm_world.h"
#include "comm/tcp/tcp_world.h"
#include "launch/rank_environment.h"
#include "support/reserved_port.h"

namespace baleen::testing {

inline constexpr const char* backend_variable = "BALEEN_TEST_BACKEND";
inline bool over_mpi() {
  const char* backend = std::getenv(backend_variable);
  return backend != nullptr && std::string(backend) == "mpi";
}
inline constexpr const char* linger_variable = "BALEEN_TEST_LINGER_S";
// Keeps a process at its end, after its report.
struct Farewell {
  ~Farewell() {
    if (const char* seconds = std::getenv(linger_variable)) std::this_thread::sleep_for(std::chrono::seconds(std::atoi(seconds)));
  }
};
inline bool over_tcp() {
  const char* backend = std::getenv(backend_variable);
  return backend != nullptr && std::string(backend) == "tcp";
}
// Ranks as threads that find each other; rethrows the failure of the lowest rank that could not.
inline std::vector<std::unique_ptr<World>> create_tcp_worlds(int size, std::chrono::milliseconds timeout) {
  TcpMeeting meeting;
  const ReservedPort port;
  meeting.address = "127.0.0.1";
  meeting.port = port.number();
  meeting.size = size;
  meeting.secret = "a secret for this test alone";
  meeting.timeout = std::chrono::seconds(20);
  std::vector<std::future<std::unique_ptr<World>>> coming;
  for (meeting.rank = 0; meeting.rank < size; ++meeting.rank)
    coming.push_back(std::async(std::launch::async, [meeting, timeout] { return create_tcp_world(meeting, timeout); }));
  std::vector<std::unique_ptr<World>> worlds;
  for (auto& world : coming) worlds.push_back(world.get());
  return worlds;
}
// This process's world, made once. Pieces are small, so that every operation takes several.
inline World& mpi_world(std::chrono::milliseconds timeout) {
  const RankEnvironment me = detect_ranks();
  static const Farewell farewell;
  static const std::unique_ptr<World> world = create_mpi_world(me.rank, me.size, {timeout, 40'000});
  return *world;
}
// The body of run_ranks in one of mpirun's processes, which are as many as the test has ranks.
inline void run_mpi_rank(int size, const std::function<void(World&)>& body, std::chrono::milliseconds timeout) {
  World& world = mpi_world(timeout);
  BALEEN_CHECK(world.size() == size, "a test of", size, "ranks under mpirun -n", world.size());
  try {
    body(world);
    if (::testing::Test::HasFatalFailure()) world.abort("an assertion of the test failed");
  } catch (const std::exception& error) {
    world.abort("a rank of the test failed: " + std::string(error.what()));
    throw;
  }
}

// Runs body(world) on one thread a rank; rethrows the failure of the lowest rank that failed. A rank that throws aborts the world, so that
// the others end too.
inline void run_ranks(int size, const std::function<void(World&)>& body, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  if (over_mpi()) return run_mpi_rank(size, body, timeout);
  auto worlds = over_tcp() ? create_tcp_worlds(size, timeout) : create_thread_worlds(size, timeout);
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

// The reason with which `body` fails; it must be a rank_failed Error.
inline std::string failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::rank_failed) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "did not fail";
  return "";
}

}  // namespace baleen::testing
