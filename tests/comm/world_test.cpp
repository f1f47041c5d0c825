// Communicators over parts of the world, many of them, and what they leave behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "comm/connect.h"
#include "comm/mesh.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using testing::all_ranks;
using testing::run_ranks;

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

std::size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST(World, OneCommunicatorAnAxisAllAtWork) {
  const Mesh mesh({.pp = 2, .replicate = 1, .dp = 2, .cp = 1, .tp = 2});
  run_ranks(8, [&](World& world) {
    std::vector<std::unique_ptr<Communicator>> axes;
    for (const Axis axis : all_axes)
      axes.push_back(world.create_communicator(mesh.group(world.rank(), axis), std::string(axis_name(axis))));
    std::vector<std::int32_t> sums(axes.size(), world.rank());
    std::vector<Event> events;
    for (std::size_t axis = 0; axis < axes.size(); ++axis)
      events.push_back(axes[axis]->all_reduce(&sums[axis], &sums[axis], 1, DType::i32, ReduceOp::sum));
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      events[axis].wait();
      std::int32_t wanted = 0;
      for (const int rank : mesh.group(world.rank(), all_axes[axis])) wanted += rank;
      EXPECT_EQ(sums[axis], wanted) << axes[axis]->name();
    }
  });
}

TEST(World, RanksMayTakeNoPart) {
  run_ranks(4, [](World& world) {
    const bool inside = world.rank() == 1 || world.rank() == 3;
    const auto pair = world.create_communicator(inside ? std::vector<int>{1, 3} : std::vector<int>{}, "pair");
    EXPECT_EQ(pair != nullptr, inside);
    if (inside) {
      std::int32_t value = world.rank();
      pair->all_reduce(&value, &value, 1, DType::i32, ReduceOp::max).wait();
      EXPECT_EQ(value, 3);
      EXPECT_EQ(pair->rank(), world.rank() / 2);
      EXPECT_EQ(pair->size(), 2);
    }
    const auto everybody = world.create_communicator(all_ranks(4), "everybody");
    everybody->barrier().wait();
  });
}

// More communicators one after the other than the region has windows, some held longer than others: windows come back empty.
TEST(World, WindowsAreUsedAgain) {
  run_ranks(3, [](World& world) {
    std::unique_ptr<Communicator> held;
    for (int index = 0; index < 400; ++index) {
      auto comm = world.create_communicator(all_ranks(3), "round");
      std::vector<std::int32_t> data(10'000, index + world.rank());
      comm->all_reduce(data.data(), data.data(), data.size(), DType::i32, ReduceOp::sum).wait();
      ASSERT_EQ(data, std::vector<std::int32_t>(10'000, 3 * index + 3));
      if (index % 50 == world.rank()) held = std::move(comm);  // replaces one that all others have left
    }
  });
}

TEST(World, LeavesNoDescriptorAndNoThread) {
  run_ranks(2, [](World& world) { world.create_communicator({0, 1}, "warm-up")->barrier().wait(); });
  const std::size_t descriptors = open_descriptors(), tasks = threads();
  for (int round = 0; round < 3; ++round)
    run_ranks(4, [](World& world) { world.create_communicator(all_ranks(4), "dp")->barrier().wait(); });
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(threads(), tasks);
}

TEST(World, CountsTheBytesOfTheAlgorithm) {
  run_ranks(4, [](World& world) {
    const auto comm = world.create_communicator(all_ranks(4), "dp");
    const std::size_t count = 128 * 4 * 100;
    std::vector<float> data(count);
    comm->all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum).wait();
    EXPECT_EQ(comm->bytes_sent(), 2 * count * 4 * 3 / 4);  // 2 (n-1)/n of the data
    comm->barrier().wait();
    EXPECT_EQ(comm->bytes_sent(), 2 * count * 4 * 3 / 4);
    EXPECT_GT(comm->busy_nanoseconds(), 0u);
  });
}

// The table of docs/parallelism.md.
TEST(World, EveryCollectiveSendsTheBytesOfItsTable) {
  constexpr int n = 4;
  run_ranks(n, [](World& world) {
    const auto comm = world.create_communicator(all_ranks(n), "dp");
    const std::size_t each = 128 * 700, whole = each * n * sizeof(float);  // several windows a slice
    std::vector<float> a(each * n), b(each * n);
    const auto sent_by = [&](const std::function<Event()>& operation) {
      const std::uint64_t before = comm->bytes_sent();
      operation().wait();
      comm->barrier().wait();
      return comm->bytes_sent() - before;
    };
    const std::uint64_t share = whole / n * (n - 1);
    EXPECT_EQ(sent_by([&] { return comm->all_reduce(a.data(), b.data(), each * n, DType::f32, ReduceOp::sum); }), 2 * share);
    EXPECT_EQ(sent_by([&] { return comm->reduce_scatter(a.data(), b.data(), each, DType::f32, ReduceOp::sum); }), share);
    EXPECT_EQ(sent_by([&] { return comm->all_gather(a.data(), b.data(), each, DType::f32); }), share);
    EXPECT_EQ(sent_by([&] { return comm->all_to_all(a.data(), b.data(), each, DType::f32); }), share);
    EXPECT_EQ(sent_by([&] { return comm->broadcast(a.data(), each * n, DType::f32, 1); }), comm->rank() == 0 ? 0 : whole);
    // bf16 travels as fp32 partial sums through the first half: 4 + 2 bytes an element.
    EXPECT_EQ(sent_by([&] { return comm->all_reduce(a.data(), b.data(), each * n, DType::bf16, ReduceOp::sum); }), share + share / 2);
    const int next = (comm->rank() + 1) % n, previous = (comm->rank() + n - 1) % n;
    EXPECT_EQ(sent_by([&] { return comm->exchange(a.data(), next, b.data(), previous, each * n, DType::f32); }), whole);
    EXPECT_EQ(sent_by([&] { return comm->barrier(); }), 0u);
  });
}

TEST(World, ASingleRankNeedsNobody) {
  const auto world = connect_world(RankEnvironment{}, std::chrono::seconds(1));
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->backend(), "shm");
  const auto comm = world->create_communicator({0}, "dp");
  std::vector<float> data{1, 2, 3}, out(3);
  comm->all_reduce(data.data(), out.data(), 3, DType::f32, ReduceOp::avg).wait();
  EXPECT_EQ(out, data);
  EXPECT_EQ(comm->bytes_sent(), 0u);
}

TEST(World, MoreRanksThanTheBackendHasAreRefused) {
  try {
    create_thread_worlds(max_shm_ranks + 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
  }
}

TEST(World, RanksOnSeveralMachinesAreRefused) {
  RankEnvironment environment;
  environment.source = RankSource::torchrun;
  environment.size = 4;
  environment.local_size = 2;
  try {
    connect_world(environment, std::chrono::seconds(1));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
  }
}

}  // namespace
}  // namespace baleen
