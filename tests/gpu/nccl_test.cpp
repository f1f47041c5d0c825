// NCCL between as many GPUs as there are, up to four: one rank a GPU, ranks as threads, the host's part over shared memory.
#include "comm/gpu_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "base/error.h"
#include "comm/shm/shm_world.h"
#include "device/gpu.h"
#include "parallel/small_training.h"

namespace baleen {
namespace {

constexpr std::chrono::milliseconds patience{20'000};

class Nccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::size_t gpus = list_gpus().gpus.size();
    std::string why;
    if (gpus < static_cast<std::size_t>(GetParam())) GTEST_SKIP() << "this machine has " << gpus << " GPUs";
    if (nccl_version(why).empty()) GTEST_SKIP() << why;
  }
  struct Rank {
    Device& device;
    Stream& stream;
    Communicator& comm;
    World& world;
  };
  static void run(const std::function<void(Rank)>& body, std::chrono::milliseconds timeout = patience) {
    const int size = GetParam();
    auto worlds = create_thread_worlds(size, timeout);
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
          World& world = *worlds[static_cast<std::size_t>(rank)];
          try {
            const auto device = create_gpu_device(rank);
            const auto stream = device->create_stream();
            std::vector<int> all;
            for (int other = 0; other < size; ++other) all.push_back(other);
            const auto comm = for_gpu_buffers(world.create_communicator(all, "dp"), *device, {"nccl", timeout});
            body({*device, *stream, *comm, world});
          } catch (const std::exception& error) {
            failures[static_cast<std::size_t>(rank)] = std::current_exception();
            world.abort(error.what());
          }
        });
    }
    for (const auto& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }
  template <class T>
  static std::vector<T> read(Rank& rank, const Buffer& from) {
    std::vector<T> out(from.bytes() / sizeof(T));
    rank.stream.copy(out.data(), from.data(), from.bytes());
    rank.stream.synchronize();
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Nccl, ::testing::Values(1, 2, 4), ::testing::PrintToStringParamName());

float value(int rank, std::size_t index) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 3 + index) % 11);
}

TEST_P(Nccl, EveryCollectiveIsRightAndOrderedByEvents) {
  run([](Rank rank) {
    const auto n = static_cast<std::size_t>(rank.comm.size());
    const int me = rank.comm.rank();
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1'000'003}}) {
      Buffer one = rank.device.allocate("one", count * sizeof(float)), all = rank.device.allocate("all", n * count * sizeof(float));
      std::vector<float> own(count);
      for (std::size_t i = 0; i < count; ++i) own[i] = value(me, i);
      // No wait of the host between the copy and the last result.
      rank.stream.copy(one.data(), own.data(), one.bytes());
      const Event gathered = rank.comm.all_gather(one.data(), all.data(), count, DType::f32, rank.stream.record());
      const Event scattered = rank.comm.reduce_scatter(all.data(), one.data(), count, DType::f32, ReduceOp::avg, gathered);
      rank.stream.wait(scattered);
      const std::vector<float> everything = read<float>(rank, all), mean = read<float>(rank, one);
      for (std::size_t from = 0; from < n; ++from)
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(everything[from * count + i], value(static_cast<int>(from), i));
      ASSERT_EQ(mean, own);
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
        rank.stream.copy(one.data(), own.data(), one.bytes());
        rank.stream.wait(rank.comm.all_reduce(one.data(), one.data(), count, DType::f32, op, rank.stream.record()));
        const std::vector<float> result = read<float>(rank, one);
        for (std::size_t i = 0; i < count; ++i) {
          float wanted = value(0, i);
          for (int other = 1; other < static_cast<int>(n); ++other) {
            const float theirs = value(other, i);
            wanted = op == ReduceOp::sum ? wanted + theirs : op == ReduceOp::max ? std::max(wanted, theirs) : std::min(wanted, theirs);
          }
          ASSERT_EQ(result[i], wanted) << static_cast<int>(op) << " at " << i;
        }
      }
      const int root = rank.comm.size() - 1;
      rank.stream.copy(one.data(), own.data(), one.bytes());
      rank.stream.wait(rank.comm.broadcast(one.data(), count, DType::f32, root, rank.stream.record()));
      const std::vector<float> sent = read<float>(rank, one);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(sent[i], value(root, i));
      std::vector<float> blocks(n * count);
      for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = value(me * 5 + static_cast<int>(i / count), i % count);
      rank.stream.copy(all.data(), blocks.data(), all.bytes());
      rank.stream.wait(rank.comm.all_to_all(all.data(), all.data(), count, DType::f32, rank.stream.record()));
      const std::vector<float> exchanged = read<float>(rank, all);
      for (std::size_t i = 0; i < exchanged.size(); ++i) ASSERT_EQ(exchanged[i], value(static_cast<int>(i / count) * 5 + me, i % count));
    }
    rank.comm.barrier().wait();
  });
}

TEST_P(Nccl, AllPassOnAtOnce) {
  if (GetParam() == 1) GTEST_SKIP() << "a rank alone has nobody to send to";
  run([](Rank rank) {
    const std::size_t count = 4'000'000;  // more than any buffer of the library
    const int n = rank.comm.size(), me = rank.comm.rank();
    Buffer out = rank.device.allocate("out", count * sizeof(float)), in = rank.device.allocate("in", count * sizeof(float));
    std::vector<float> own(count, static_cast<float>(me));
    rank.stream.copy(out.data(), own.data(), out.bytes());
    const std::uint64_t waits = host_waits(rank.device);
    rank.stream.wait(rank.comm.exchange(out.data(), (me + 1) % n, in.data(), (me + n - 1) % n, count, DType::f32, rank.stream.record()));
    rank.stream.wait(rank.comm.exchange(in.data(), (me + 1) % n, out.data(), (me + n - 1) % n, count, DType::f32, rank.stream.record()));
    EXPECT_EQ(host_waits(rank.device), waits);
    ASSERT_EQ(read<float>(rank, in), std::vector<float>(count, static_cast<float>((me + n - 1) % n)));
    ASSERT_EQ(read<float>(rank, out), std::vector<float>(count, static_cast<float>((me + n - 2) % n)));
    // A collective behind messages.
    rank.stream.wait(rank.comm.all_reduce(in.data(), in.data(), count, DType::f32, ReduceOp::sum));
    ASSERT_EQ(read<float>(rank, in), std::vector<float>(count, static_cast<float>(n * (n - 1) / 2)));
  });
}

TEST_P(Nccl, ALinkCarriesMessagesOneWayWithoutBeingConnectedBefore) {
  if (GetParam() == 1) GTEST_SKIP() << "a rank alone has nobody to send to";
  run([](Rank rank) {
    const std::size_t count = 1'000'000;
    const int n = rank.comm.size(), me = rank.comm.rank();
    Buffer data = rank.device.allocate("data", count * sizeof(float));
    std::vector<float> own(count, static_cast<float>(me + 1));
    rank.stream.copy(data.data(), own.data(), data.bytes());
    for (int message = 0; message < 3; ++message) {  // from the first to the last, each adding nothing
      Event at = rank.stream.record();
      if (me > 0) at = rank.comm.recv(data.data(), count, DType::f32, me - 1, at);
      if (me + 1 < n) at = rank.comm.send(data.data(), count, DType::f32, me + 1, at);
      rank.stream.wait(at);
    }
    ASSERT_EQ(read<float>(rank, data), std::vector<float>(count, 1.0f));
  });
}

TEST_P(Nccl, ACollectiveIsPartOfARecordedGraph) {
  run([](Rank rank) {
    const std::size_t count = 100'000;
    Buffer data = rank.device.allocate("data", count * sizeof(float));
    const std::vector<float> ones(count, 1.0f);
    rank.stream.copy(data.data(), ones.data(), data.bytes());
    const auto step = [&] {
      rank.stream.wait(rank.comm.all_reduce(data.data(), data.data(), count, DType::f32, ReduceOp::sum, rank.stream.record()));
    };
    step();
    rank.stream.synchronize();
    const auto graph = capture(rank.stream, step);
    for (int replay = 0; replay < 3; ++replay) graph->replay(rank.stream);
    float wanted = 1;
    for (int times = 0; times < 4; ++times) wanted *= static_cast<float>(rank.comm.size());
    ASSERT_EQ(read<float>(rank, data), std::vector<float>(count, wanted));
  });
}

TEST_P(Nccl, HostBuffersTakeTheHostsWay) {
  run([](Rank rank) {
    double sum = rank.comm.rank() + 1;
    rank.comm.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum).wait();
    ASSERT_EQ(sum, rank.comm.size() * (rank.comm.size() + 1) / 2);
  });
}

TEST_P(Nccl, ARankThatDoesNotComeEndsTheWaitWithinTheDeadline) {
  if (GetParam() == 1) GTEST_SKIP() << "a rank alone waits for nobody";
  run(
      [](Rank rank) {
        Buffer data = rank.device.allocate("data", 4096);
        if (rank.comm.rank() == rank.comm.size() - 1) {
          for (int look = 0; look < 2000 && rank.comm.failure().empty(); ++look) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          EXPECT_NE(rank.comm.failure().find("all_reduce of 1024 fp32 (sum)"), std::string::npos) << rank.comm.failure();
          return;
        }
        const auto sum = [&] { rank.comm.all_reduce(data.data(), data.data(), 1024, DType::f32, ReduceOp::sum).wait(); };
        // The first one ends when the library is aborted: with the reason where it was still being connected, else as if done.
        try {
          sum();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::rank_failed);
        }
        try {
          sum();
          ADD_FAILURE() << "did not fail";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::rank_failed);
          EXPECT_NE(std::string(error.what()).find("all_reduce of 1024 fp32 (sum)"), std::string::npos) << error.what();
        }
      },
      std::chrono::milliseconds(2000));
}

struct OneRankRun {
  std::vector<double> losses, norms;
  std::vector<std::size_t> nodes;  // of each step's graph; 0: it was none
  std::size_t units = 0;
};

OneRankRun train_alone(const std::string& backend, ReduceOp op, int zero) {
  using namespace testing;
  OneRankRun out;
  auto world = std::move(create_thread_worlds(1, patience).front());
  Training training;
  training.op = op;
  training.layout.zero = zero;
  training.micro_batch = 4;
  EngineOptions options = training.engine_options();
  options.device = create_gpu_device(0, {.deterministic = true});
  const auto axis = for_gpu_buffers(world->create_communicator({0}, "one"), *options.device, {backend, patience});
  Engine engine(options, *axis);
  engine.units().initialize_weights(11);
  out.units = static_cast<std::size_t>(engine.units().units());
  AdamWOptimizer optimizer({.seed = 3}, engine.device(), engine.units());
  const UnevenBatches batches;
  TrainingStep step(engine, optimizer, batches, {LrScheduleKind::constant, 1e-3, 0, 0, 100, 0.1}, 1.0);
  for (std::int64_t s = 1; s <= 6; ++s) {
    const auto result = step.run(s, false);
    out.losses.push_back(result->loss);
    out.norms.push_back(result->grad_norm);
    out.nodes.push_back(step.graph_nodes());
  }
  return out;
}

// For one rank the library's sum in place is nothing, its average a kernel: the graphs differ by one for each unit's gradients.
TEST(NcclOneRank, TheStepsGraphHoldsItsCollectives) {
  std::string why;
  if (!gpu_available() || nccl_version(why).empty()) GTEST_SKIP() << "no GPU or no NCCL here";
  for (const int zero : {0, 1}) {
    const OneRankRun plain = train_alone("auto", ReduceOp::sum, zero), sums = train_alone("nccl", ReduceOp::sum, zero),
                     means = train_alone("nccl", ReduceOp::avg, zero);
    for (std::size_t s = 0; s < plain.nodes.size(); ++s) {
      EXPECT_EQ(plain.nodes[s] > 0, s > 0) << s;
      EXPECT_EQ(sums.nodes[s], plain.nodes[s]) << s;
      EXPECT_EQ(means.nodes[s], s > 0 ? sums.nodes[s] + means.units : 0) << s;
    }
    EXPECT_EQ(sums.losses, plain.losses);
    EXPECT_EQ(sums.norms, plain.norms);
    EXPECT_EQ(means.losses, plain.losses);
    EXPECT_EQ(means.norms, plain.norms);
  }
}

TEST(NcclOneRank, MemoryOfTheGpuAloneIsRegistered) {
  std::string why;
  if (!gpu_available() || nccl_version(why).empty()) GTEST_SKIP() << "no GPU or no NCCL here";
  auto world = std::move(create_thread_worlds(1, patience).front());
  const auto device = create_gpu_device(0), pinned = create_pinned_host();
  const auto axis = for_gpu_buffers(world->create_communicator({0}, "one"), *device, {"nccl", patience});
  const auto stream = device->create_stream();
  Buffer here = device->allocate("here", 1 << 22), there = pinned->allocate("there", 1 << 22);
  std::vector<float> ordinary(1024);
  EXPECT_EQ(axis->announce(there.data(), there.bytes(), MemoryUse::reduced), nullptr);
  EXPECT_EQ(axis->announce(ordinary.data(), ordinary.size() * sizeof(float), MemoryUse::reduced), nullptr);
  EXPECT_EQ(axis->announce(nullptr, 0, MemoryUse::reduced), nullptr);
  for (int times = 0; times < 2; ++times) {  // again, once it has ended
    const auto announced = axis->announce(here.data(), here.bytes(), MemoryUse::reduced);
    ASSERT_NE(announced, nullptr);
    stream->wait(axis->all_reduce(here.data(), here.data(), here.bytes() / sizeof(float), DType::f32, ReduceOp::avg, stream->record()));
    stream->synchronize();
  }
  // An aborted communicator has let go of what it knew.
  const auto late = axis->announce(here.data(), here.bytes(), MemoryUse::reduced);
  axis->abort("a test");
}

TEST(NcclRefusals, TwoRanksOnOneGpu) {
  std::string why;
  if (!gpu_available() || nccl_version(why).empty()) GTEST_SKIP() << "no GPU or no NCCL here";
  auto worlds = create_thread_worlds(2, patience);
  std::vector<std::jthread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&world] {
      const auto device = create_gpu_device(0);
      try {
        for_gpu_buffers(world->create_communicator({0, 1}, "dp"), *device, {"nccl", patience});
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_config);
        EXPECT_NE(std::string(error.what()).find("share a GPU"), std::string::npos) << error.what();
      }
      // Left to itself, the same pair goes through the host.
      const auto staged = for_gpu_buffers(world->create_communicator({0, 1}, "dp"), *device, {"auto", patience});
      const auto stream = device->create_stream();
      const std::vector<float> ones(100, 1.0f);
      std::vector<float> result(100);
      Buffer data = device->allocate("data", 400);
      stream->copy(data.data(), ones.data(), 400);
      staged->all_reduce(data.data(), data.data(), 100, DType::f32, ReduceOp::sum, stream->record()).wait();
      stream->copy(result.data(), data.data(), 400);
      stream->synchronize();
      EXPECT_EQ(result, std::vector<float>(100, 2.0f));
    });
}

}  // namespace
}  // namespace baleen
