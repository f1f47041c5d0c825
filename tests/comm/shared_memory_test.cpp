// Buffers in memory that all ranks can reach: the heap that hands them out, and collectives that read them where they lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/rng.h"
#include "comm/shm/layout.h"
#include "comm/shm/shared_heap.h"
#include "comm/thread_ranks.h"
#include "device/device.h"

namespace baleen {
namespace {

using testing::all_ranks;
using testing::failure_of;
using ::testing::HasSubstr;
using testing::run_members;

TEST(SharedHeap, PiecesAreApartZeroAndUsedAgain) {
  const auto region = SharedRegion::create(2);
  shm::SharedHeap first(region, 0), second(region, 1);
  constexpr std::size_t bytes = 10'000;
  auto* a = static_cast<std::byte*>(first.allocate(bytes));
  auto* b = static_cast<std::byte*>(first.allocate(bytes));
  auto* c = static_cast<std::byte*>(first.allocate(bytes));
  auto* other = static_cast<std::byte*>(second.allocate(bytes));
  ASSERT_TRUE(a != nullptr && b != nullptr && c != nullptr && other != nullptr);
  EXPECT_TRUE(first.holds(a) && first.holds(c + bytes - 1) && !first.holds(other) && second.holds(other) && !second.holds(a));
  for (auto* piece : {a, b, c, other}) {
    EXPECT_TRUE(std::all_of(piece, piece + bytes, [](std::byte value) { return value == std::byte{0}; }));
    std::memset(piece, 7, bytes);
  }
  // Neighbours that are free become one hole, whichever went first.
  first.release(b, bytes);
  first.release(a, bytes);
  auto* wide = static_cast<std::byte*>(first.allocate(2 * bytes));
  EXPECT_EQ(wide, a);
  EXPECT_TRUE(std::all_of(wide, wide + 2 * bytes, [](std::byte value) { return value == std::byte{0}; }));
  EXPECT_EQ(c[bytes - 1], std::byte{7});
  EXPECT_EQ(first.allocate(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(first.allocate(0), nullptr);
}

TEST(SharedHeap, ADeviceTakesSharedBuffersThereAndOthersElsewhere) {
  const auto heap = std::make_shared<shm::SharedHeap>(SharedRegion::create(1), 0);
  const auto device = create_cpu_device(heap);
  {
    const Buffer own = device->allocate("own", 100), shared = device->allocate_shared("shared", 100);
    EXPECT_FALSE(heap->holds(own.data()));
    EXPECT_TRUE(heap->holds(shared.data()));
    EXPECT_EQ(device->allocations(), (std::map<std::string, std::size_t>{{"own", 100}, {"shared", 100}}));
  }
  EXPECT_TRUE(device->allocations().empty());
}

// Whatever a collective does to `elements` random ones of a rank, in memory that `from` and `to` are made in.
struct Buffers {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Buffer> buffers;
  void* make(std::shared_ptr<SharedMemory> memory, std::size_t bytes) {
    devices.push_back(create_cpu_device(std::move(memory)));
    return buffers.emplace_back(devices.back()->allocate_shared("test", std::max<std::size_t>(bytes, 1))).data();
  }
};

enum class Kind { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast };

// `shared`: whether this rank's buffers are. Returns the bytes that the rank has received.
std::vector<std::byte> run(Communicator& comm, const std::shared_ptr<SharedMemory>& shared, Kind kind, std::size_t count, DType dtype,
                           bool in_place) {
  const auto n = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
  const std::size_t element = dtype_bytes(dtype), bytes = count * element;
  const bool parts = kind == Kind::reduce_scatter || kind == Kind::all_to_all,
             gathers = kind == Kind::all_gather || kind == Kind::all_to_all;
  const std::size_t sent = bytes * (parts ? n : 1), received = bytes * (gathers ? n : 1);
  Buffers buffers;
  auto* from = static_cast<std::byte*>(buffers.make(shared, std::max(sent, received)));
  std::byte* to = in_place ? from : static_cast<std::byte*>(buffers.make(shared, received));
  if (in_place && kind == Kind::all_gather) from += rank * bytes;
  if (in_place && kind == Kind::reduce_scatter) to += rank * bytes;
  for (std::size_t i = 0; i < sent / element; ++i) {
    const auto words = Philox(rank + 3)(i);
    const float value = (uniform_open(words[0]) - 0.5f) * static_cast<float>(1 << words[1] % 20);
    if (dtype == DType::f32)
      reinterpret_cast<float*>(from)[i] = value;
    else
      reinterpret_cast<BFloat16*>(from)[i] = to_bfloat16(value);
  }
  switch (kind) {
    case Kind::all_reduce: comm.all_reduce(from, to, count, dtype, ReduceOp::avg).wait(); break;
    case Kind::reduce_scatter: comm.reduce_scatter(from, to, count, dtype, ReduceOp::sum).wait(); break;
    case Kind::all_gather: comm.all_gather(from, to, count, dtype).wait(); break;
    case Kind::all_to_all: comm.all_to_all(from, to, count, dtype).wait(); break;
    case Kind::broadcast: comm.broadcast(from, count, dtype, comm.size() - 1).wait(), to = from; break;
  }
  return {to, to + received};
}

class InPlace : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, InPlace, ::testing::Values(2, 3, 5), ::testing::PrintToStringParamName());

// The three ways of a collective (short, in shared memory, around the ring) give the same bits and count the same bytes. Counts lie on both
// sides of what is short, and take several pieces.
TEST_P(InPlace, TheBitsOfTheRing) {
  const int size = GetParam();
  const auto region = SharedRegion::create(size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ShmWorld world(region, rank, std::chrono::seconds(60));
      const auto comm = world.create_communicator(all_ranks(size), "dp");
      const auto shared = world.shared_memory();
      ASSERT_NE(shared, nullptr);
      for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all, Kind::broadcast})
        for (const DType dtype : {DType::f32, DType::bf16})
          for (const std::size_t count : {std::size_t{0}, std::size_t{5}, std::size_t{4096}, std::size_t{4097}, std::size_t{20'011}})
            for (const bool in_place : {false, true}) {
              const auto told = [&] {
                return ::testing::Message() << static_cast<int>(kind) << " of " << count << " " << dtype_name(dtype);
              };
              const std::uint64_t before = comm->bytes_sent();
              const auto got = run(*comm, shared, kind, count, dtype, in_place);
              const std::uint64_t sent = comm->bytes_sent() - before;
              // One rank's own memory sends all of them around the ring.
              const bool outsider = rank == (kind == Kind::broadcast ? size - 1 : 1);
              ASSERT_TRUE(got == run(*comm, outsider ? nullptr : shared, kind, count, dtype, in_place)) << told();
              ASSERT_EQ(comm->bytes_sent() - before, 2 * sent) << told();
            }
    });
}

// No message goes through a channel when the buffers are shared, and none when they are short.
TEST(SharedCollectives, CopyNothingThroughChannels) {
  constexpr int size = 2;
  const auto region = SharedRegion::create(size);
  const auto messages = [&] { return shm::Layout(*region).channel(0, 0, 1).pushed.load(); };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ShmWorld world(region, rank, std::chrono::seconds(60));
      const auto comm = world.create_communicator(all_ranks(size), "dp");
      for (const std::size_t count : {std::size_t{100}, std::size_t{100'000}})
        for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all, Kind::broadcast})
          run(*comm, world.shared_memory(), kind, count, DType::f32, false);
      comm->barrier().wait();
      EXPECT_EQ(messages(), 0u);
      comm->barrier().wait();
      run(*comm, nullptr, Kind::all_reduce, 100'000, DType::f32, false);
      EXPECT_GT(messages(), 0u);
    });
}

// A send where the other rank has come to a collective, from either side.
TEST(SharedCollectives, AMessageInsteadOfACollectiveIsAMismatch) {
  for (const bool receives : {false, true})
    run_members(2, [&](Communicator& comm) {
      std::vector<float> data(1 << 20);  // more than a channel holds
      const std::string reason = failure_of([&] {
        if (comm.rank() == 0)
          comm.all_reduce(data.data(), data.data(), 1, DType::f32, ReduceOp::sum).wait();
        else if (receives)
          comm.recv(data.data(), data.size(), DType::f32, 0).wait();
        else
          comm.send(data.data(), data.size(), DType::f32, 0).wait();
        comm.barrier().wait();
      });
      EXPECT_THAT(reason, HasSubstr("all_reduce of 1 fp32 (sum)"));
      EXPECT_THAT(reason, HasSubstr("send/recv of 1048576 fp32"));
    });
}

}  // namespace
}  // namespace baleen
