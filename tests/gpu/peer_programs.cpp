#include "gpu/peer_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/connect.h"
#include "comm/gpu/peer_communicator.h"
#include "comm/gpu_communicator.h"
#include "comm/staged_communicator.h"
#include "device/gpu.h"

namespace baleen::testing {
namespace {

constexpr std::size_t count = PeerCommunicator::fewest_reduced / sizeof(float) + 4 * 33;  // of a rank

struct Rank {
  Device& device;
  Stream& stream;
  PeerCommunicator& comm;
  template <class T>
  std::vector<T> read(const T* from, std::size_t elements) {
    std::vector<T> out(elements);
    stream.copy(out.data(), from, elements * sizeof(T));
    stream.synchronize();
    return out;
  }
  template <class T>
  void write(T* to, const std::vector<T>& values) {
    stream.copy(to, values.data(), values.size() * sizeof(T));
    stream.synchronize();
  }
};

constexpr std::size_t staged = (std::size_t{1} << 20) - 1000;  // less than a slice: pieces

int run(const std::function<void(Rank)>& body, std::chrono::milliseconds timeout = std::chrono::seconds(20), bool over_library = false) {
  const RankEnvironment environment = detect_ranks();
  const auto world = connect_world(environment, timeout);
  const auto device = create_gpu_device(world->rank());
  const auto stream = device->create_stream();
  std::vector<int> all;
  for (int rank = 0; rank < world->size(); ++rank) all.push_back(rank);
  auto host = world->create_communicator(all, "dp");
  const std::unique_ptr<Communicator> comm =
      over_library
          ? for_gpu_buffers(std::move(host), *device, {"nccl", timeout})
          : std::make_unique<PeerCommunicator>(std::make_unique<StagedCommunicator>(std::move(host), *device), *device, timeout, staged);
  body({*device, *stream, dynamic_cast<PeerCommunicator&>(*comm)});
  comm->barrier().wait();
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

// Runs what must end with `reason` on every rank.
int fail(const std::string& reason, const std::function<void(Rank)>& body, std::chrono::milliseconds timeout = std::chrono::seconds(20),
         bool over_library = false) {
  try {
    run(body, timeout, over_library);
    ADD_FAILURE() << "nothing failed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::rank_failed);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(reason));
  }
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

float value(int rank, std::size_t index, int turn) {
  return static_cast<float>((index * 7 + static_cast<std::size_t>(rank * 5 + turn)) % 1009);
}
std::vector<float> values(int rank, std::size_t elements, int turn) {
  std::vector<float> out(elements);
  for (std::size_t i = 0; i < elements; ++i) out[i] = value(rank, i, turn);
  return out;
}

int gathers() {
  return run([](Rank rank) {
    const int me = rank.comm.rank(), n = rank.comm.size();
    // The gathered memory lies at an offset in what is announced; slices are announced as well.
    const Buffer all = rank.device.allocate("all", (static_cast<std::size_t>(n) * count + 256) * sizeof(float));
    const Buffer own = rank.device.allocate("own", 2 * count * sizeof(float)),
                 apart = rank.device.allocate("apart", static_cast<std::size_t>(n) * count * sizeof(float));
    const auto announced_all = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced),
               announced_own = rank.comm.announce(own.data(), own.bytes(), MemoryUse::reduced);
    float *const whole = all.as<float>() + 256, *const slice = own.as<float>() + count;
    for (int turn = 0; turn < 4; ++turn) {
      rank.write(whole, std::vector<float>(static_cast<std::size_t>(n) * count, -1.0f));
      rank.write(whole + static_cast<std::size_t>(me) * count, values(me, count, turn));
      rank.write(slice, values(me, count, turn + 100));
      // No wait of the host in between: the second goes where nothing is announced, from what is.
      const Event first =
          rank.comm.all_gather(whole + static_cast<std::size_t>(me) * count, whole, count, DType::f32, rank.stream.record());
      const Event second = rank.comm.all_gather(slice, apart.data(), count, DType::f32);
      rank.stream.wait(second);
      rank.stream.wait(first);
      const auto gathered = rank.read(whole, static_cast<std::size_t>(n) * count),
                 copied = rank.read(apart.as<float>(), static_cast<std::size_t>(n) * count);
      for (int from = 0; from < n; ++from)
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(gathered[static_cast<std::size_t>(from) * count + i], value(from, i, turn)) << from << " " << i;
          ASSERT_EQ(copied[static_cast<std::size_t>(from) * count + i], value(from, i, turn + 100)) << from << " " << i;
        }
    }
    EXPECT_EQ(rank.comm.copied_operations(), 8u);
    // With what the ranks told each other of their memory.
    EXPECT_GT(rank.comm.bytes_sent(), 8 * static_cast<std::size_t>(n - 1) * count * sizeof(float));
    EXPECT_LT(rank.comm.bytes_sent(), 8 * static_cast<std::size_t>(n - 1) * count * sizeof(float) + 10'000);
  });
}

int reduce_scatters() {
  return run([](Rank rank) {
    const int me = rank.comm.rank(), n = rank.comm.size();
    const auto total = static_cast<std::size_t>(n) * count;
    const Buffer all = rank.device.allocate("all", total * sizeof(float)), own = rank.device.allocate("own", count * sizeof(float));
    const auto announced = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced);
    float* const slice = all.as<float>() + static_cast<std::size_t>(me) * count;
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::vector<float>> given;
      for (int from = 0; from < n; ++from) {
        given.push_back(values(from, total, turn));
        for (float& v : given.back()) v = 1.0f / (v + 3.0f);  // sums depend on their order
      }
      const auto wanted = [&](std::size_t i, float scale) {
        const std::size_t at = static_cast<std::size_t>(me) * count + i;
        float sum = given[static_cast<std::size_t>((me + 1) % n)][at];
        for (int step = 2; step <= n; ++step) sum += given[static_cast<std::size_t>((me + step) % n)][at];
        return sum * scale;
      };
      rank.write(all.as<float>(), given[static_cast<std::size_t>(me)]);
      // No wait of the host between the three: the sum, added to it a second time, and the mean in place.
      ASSERT_TRUE(rank.comm.adds_to_held(all.data(), count, DType::f32, ReduceOp::sum));
      rank.comm.reduce_scatter(all.data(), own.data(), count, DType::f32, ReduceOp::sum, rank.stream.record());
      rank.comm.reduce_scatter_add(all.data(), own.data(), count, DType::f32, ReduceOp::sum);
      rank.stream.wait(rank.comm.reduce_scatter(all.data(), slice, count, DType::f32, ReduceOp::avg));
      const auto sums = rank.read(own.as<float>(), count), means = rank.read(static_cast<const float*>(slice), count);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(sums[i], 2 * wanted(i, 1.0f)) << i;
        ASSERT_EQ(means[i], wanted(i, 1.0f / static_cast<float>(n))) << i;
      }
    }
    EXPECT_EQ(rank.comm.copied_operations(), 9u);
  });
}

int bf16() {
  return run([](Rank rank) {
    const int me = rank.comm.rank(), n = rank.comm.size();
    const std::size_t each = 2 * count, total = static_cast<std::size_t>(n) * each;
    const Buffer all = rank.device.allocate("all", total * sizeof(BFloat16));
    const auto announced = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced);
    const auto given = [&](int from, std::size_t i) { return to_bfloat16(1.0f / (value(from, i, 0) + 2.0f)); };
    std::vector<BFloat16> mine(total);
    for (std::size_t i = 0; i < total; ++i) mine[i] = given(me, i);
    rank.write(all.as<BFloat16>(), mine);
    BFloat16* const slice = all.as<BFloat16>() + static_cast<std::size_t>(me) * each;
    rank.stream.wait(rank.comm.reduce_scatter(all.data(), slice, each, DType::bf16, ReduceOp::sum, rank.stream.record()));
    const auto sums = rank.read(static_cast<const BFloat16*>(slice), each);
    for (std::size_t i = 0; i < each; ++i) {
      float sum = 0;
      for (int step = 1; step <= n; ++step) sum += to_float(given((me + step) % n, static_cast<std::size_t>(me) * each + i));
      ASSERT_EQ(to_float(sums[i]), to_float(to_bfloat16(sum))) << i;
    }
    EXPECT_EQ(rank.comm.copied_operations(), 1u);
  });
}

int mixed() {
  return run([](Rank rank) {
    const int me = rank.comm.rank(), n = rank.comm.size();
    const Buffer all = rank.device.allocate("all", static_cast<std::size_t>(n) * count * sizeof(float)),
                 own = rank.device.allocate("own", count * sizeof(float));
    const auto announced = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced);
    rank.write(own.as<float>(), values(me, count, 0));
    rank.stream.wait(rank.comm.all_gather(own.data(), all.data(), count, DType::f32, rank.stream.record()));  // its source is not announced
    rank.stream.wait(rank.comm.reduce_scatter(all.data(), own.data(), 100, DType::f32, ReduceOp::max));       // small
    EXPECT_EQ(rank.comm.copied_operations(), 0u);
    // Between the two kinds nothing but the order of the calls.
    const Event scattered = rank.comm.reduce_scatter(all.data(), own.data(), count, DType::f32, ReduceOp::sum);
    const Event summed = rank.comm.all_reduce(own.data(), own.data(), count, DType::f32, ReduceOp::sum);
    rank.stream.wait(summed);
    EXPECT_EQ(rank.comm.copied_operations(), 1u);
    const auto sums = rank.read(own.as<float>(), count);
    for (std::size_t i = 0; i < count; ++i) {
      float wanted = 0;
      for (int from = 0; from < n; ++from) wanted += static_cast<float>(n) * value(from, i, 0);
      ASSERT_EQ(sums[i], wanted) << i;
    }
  });
}

// Rank 0 never comes to the operation: the others' watch lets go of what their streams wait for.
int absent() {
  return fail(
      "waited 1.0 s for other ranks",
      [](Rank rank) {
        const int n = rank.comm.size();
        const Buffer all = rank.device.allocate("all", static_cast<std::size_t>(n) * count * sizeof(float));
        const auto announced = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced);
        if (rank.comm.rank() == 0) {
          while (rank.comm.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        float* const slice = all.as<float>() + static_cast<std::size_t>(rank.comm.rank()) * count;
        rank.stream.wait(rank.comm.reduce_scatter(all.data(), slice, count, DType::f32, ReduceOp::sum));
        rank.stream.synchronize();
        EXPECT_NE(rank.comm.failure(), "");
        rank.comm.reduce_scatter(all.data(), slice, count, DType::f32, ReduceOp::sum);  // throws
        ADD_FAILURE() << "taken";
      },
      std::chrono::milliseconds(1000));
}

// Rank 0 gives up in the middle: the others, who have more enqueued and go on for a moment, end, and so does it.
int give_up(bool over_library) {
  const auto body = [](Rank rank) {
    const int n = rank.comm.size(), me = rank.comm.rank();
    const Buffer all = rank.device.allocate("all", static_cast<std::size_t>(n) * count * sizeof(float));
    const auto announced = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced);
    float* const slice = all.as<float>() + static_cast<std::size_t>(me) * count;
    for (int operation = 0; operation < (me == 0 ? 20 : 40); ++operation)
      rank.stream.wait(rank.comm.all_gather(slice, all.data(), count, DType::f32));
    if (me == 0) rank.comm.abort("a test gives up");
    rank.stream.synchronize();
    while (rank.comm.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    rank.comm.all_gather(slice, all.data(), count, DType::f32);  // throws
    ADD_FAILURE() << "taken";
  };
  return fail("a test gives up", body, std::chrono::seconds(20), over_library);
}
int given_up() {
  return give_up(false);
}
int given_up_over_the_library() {
  return give_up(true);
}

// What one member announces is larger than what another does: nobody copies, and operations go on.
int uneven() {
  return run([](Rank rank) {
    const int n = rank.comm.size(), me = rank.comm.rank();
    const Buffer all = rank.device.allocate("all", static_cast<std::size_t>(n) * count * sizeof(float) + (me == 0 ? 4096 : 0));
    const auto announced = rank.comm.announce(all.data(), all.bytes(), MemoryUse::reduced);
    EXPECT_FALSE(rank.comm.adds_to_held(all.data(), count, DType::f32, ReduceOp::sum));
    float* const slice = all.as<float>() + static_cast<std::size_t>(me) * count;
    rank.write(slice, values(me, count, 0));
    rank.stream.wait(rank.comm.all_gather(slice, all.data(), count, DType::f32, rank.stream.record()));
    EXPECT_EQ(rank.comm.copied_operations(), 0u);
    const auto gathered = rank.read(all.as<float>(), static_cast<std::size_t>(n) * count);
    for (int from = 0; from < n; ++from)
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(gathered[static_cast<std::size_t>(from) * count + i], value(from, i, 0));
  });
}

}  // namespace

RankPrograms peer_programs() {
  return {{"gathers", gathers},
          {"reduce_scatters", reduce_scatters},
          {"bf16", bf16},
          {"mixed", mixed},
          {"absent", absent},
          {"given_up", given_up},
          {"given_up_over_the_library", given_up_over_the_library},
          {"uneven", uneven}};
}

}  // namespace baleen::testing
