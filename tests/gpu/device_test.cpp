// The GPU as a device: memory, streams, events, graphs.
#include <numeric>

#include "device/timing.h"
#include "gpu/support.h"
#include "ops/elementwise.h"
#include "sharding/comm_waits.h"

namespace baleen::testing {
namespace {

class GpuDevice : public OnBothDevices {};

TEST(GpuAbsence, IsExplained) {
  const GpuList list = list_gpus();
  EXPECT_EQ(list.gpus.empty(), !list.why_none.empty());
  EXPECT_EQ(gpu_available(), !list.gpus.empty());
  try {
    create_gpu_device(1000);
    FAIL() << "there is no GPU 1000";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_FALSE(error.remedy().empty());
  }
}

TEST_F(GpuDevice, MemoryIsZeroNamedAndCopied) {
  {
    const Buffer buffer = gpu->device().allocate("some name", 1000);
    EXPECT_EQ(gpu->device().allocations().at("some name"), 1000u);
    EXPECT_EQ(gpu->get<std::uint8_t>(Tensor(buffer.data(), DType::u8, {1000})), std::vector<std::uint8_t>(1000, 0));
  }
  EXPECT_EQ(gpu->device().allocations().count("some name"), 0u);
  const Floats values = random(1001);
  const Tensor there = gpu->put(values, {1001}), copy = gpu->poisoned({1001});
  gpu->stream().copy(copy.data(), there.data(), copy.bytes());
  EXPECT_EQ(gpu->get(copy), values);
  gpu->stream().fill_zero(copy.data(), copy.bytes());
  EXPECT_EQ(gpu->get(copy), Floats(1001, 0.0f));
}

TEST_F(GpuDevice, TooMuchMemoryListsWhatIsHeld) {
  const Buffer held = gpu->device().allocate("held before", 4096);
  try {
    const Buffer buffer = gpu->device().allocate("everything", std::size_t{1} << 50);
    FAIL() << "a pebibyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::out_of_memory);
    EXPECT_NE(error.what_is_wrong().find("held before"), std::string::npos);
  }
  EXPECT_EQ(gpu->get(gpu->put(Floats{1, 2}, {2})), (Floats{1, 2}));  // the device still works
}

TEST_F(GpuDevice, StreamsWaitForEachOther) {
  const auto second = gpu->device().create_stream();
  const std::size_t bytes = std::size_t{256} << 20;
  const Buffer from = gpu->poisoned_buffer("from", bytes), to = gpu->poisoned_buffer("to", bytes);
  // Much to do before: a second stream that did not wait would copy the poison.
  const Buffer before = gpu->device().allocate("filled often", std::size_t{1} << 30);
  for (int i = 0; i < 100; ++i) gpu->stream().fill_zero(before.data(), before.bytes());
  gpu->stream().fill_zero(from.data(), bytes);
  const Event filled = gpu->stream().record();
  second->wait(filled);
  second->copy(to.data(), from.data(), bytes);
  second->synchronize();
  EXPECT_TRUE(filled.ready());
  EXPECT_EQ(gpu->get<std::uint8_t>(Tensor(to.data(), DType::u8, {static_cast<std::int64_t>(bytes)})), std::vector<std::uint8_t>(bytes, 0));
}

TEST_F(GpuDevice, WaitingHasADeadline) {
  const auto impatient = create_gpu_device(0, {std::chrono::milliseconds(1)});
  const auto stream = impatient->create_stream();
  const std::size_t bytes = std::size_t{1} << 30;
  const Buffer buffer = impatient->allocate("filled often", bytes);
  for (int i = 0; i < 100; ++i) stream->fill_zero(buffer.data(), bytes);  // 25 ms at the least
  try {
    stream->synchronize();
    FAIL() << "the wait had no end";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::rank_failed);
  }
}

TEST_F(GpuDevice, TellsByTheHostsClockWhenWorkWasReached) {
  DeviceClock clock(gpu->device());
  const Buffer buffer = gpu->device().allocate("filled often", std::size_t{1} << 30);
  const auto before = std::chrono::steady_clock::now();
  const Event begin = record_time(gpu->stream());
  for (int i = 0; i < 100; ++i) gpu->stream().fill_zero(buffer.data(), buffer.bytes());  // 25 ms at the least
  const Event end = record_time(gpu->stream());
  end.wait();
  const auto after = std::chrono::steady_clock::now();
  constexpr std::chrono::milliseconds tolerance{2};
  EXPECT_GE(clock.time_of(begin), before - tolerance);
  EXPECT_LE(clock.time_of(end), after + tolerance);
  EXPECT_GE(clock.time_of(end) - clock.time_of(begin), std::chrono::milliseconds(10));
}

TEST_F(GpuDevice, WaitsForCommunicationAreTimedWhereTheStreamStandsStill) {
  CommWaits waits;
  const auto other = gpu->device().create_stream();
  const Buffer buffer = gpu->device().allocate("filled often", std::size_t{1} << 30);
  for (int i = 0; i < 100; ++i) other->fill_zero(buffer.data(), buffer.bytes());  // 25 ms at the least
  waits.wait(gpu->stream(), other->record());
  gpu->stream().synchronize();
  const std::uint64_t stood = waits.nanoseconds();
  EXPECT_GE(stood, 10'000'000u);
  const Tensor a = gpu->put(Floats{1}, {1});
  Arena scratch;
  ops::Context context{gpu->stream(), scratch};
  const auto graph = capture(gpu->stream(), [&] {
    ops::add(context, a, a, a);
    waits.wait(gpu->stream(), gpu->stream().record());
  });
  graph->replay(gpu->stream());
  EXPECT_EQ(gpu->get(a), Floats{2});
  EXPECT_EQ(waits.nanoseconds(), stood);  // inside a graph nothing can be timed
}

TEST_F(GpuDevice, AGraphRunsWhatWasRecordedAgainOnNewValues) {
  const Tensor a = gpu->put(Floats{1, 2, 3}, {3}), b = gpu->put(Floats{10, 20, 30}, {3}), out = gpu->poisoned({3});
  Arena scratch;
  ops::Context context{gpu->stream(), scratch};
  const auto graph = capture(gpu->stream(), [&] { ops::add(context, out, a, b); });
  EXPECT_TRUE(std::isnan(gpu->get(out)[0]));  // recorded, not run
  graph->replay(gpu->stream());
  EXPECT_EQ(gpu->get(out), (Floats{11, 22, 33}));
  const Floats other{5, 6, 7};
  gpu->write(a.data(), other.data(), a.bytes());
  graph->replay(gpu->stream());
  EXPECT_EQ(gpu->get(out), (Floats{15, 26, 37}));
}

TEST_F(GpuDevice, AFailureWhileRecordingLeavesTheStreamUsable) {
  EXPECT_THROW(capture(gpu->stream(), [] { throw Error(ExitCode::check_failed, "stop"); }), Error);
  EXPECT_EQ(gpu->get(gpu->put(Floats{3}, {1})), Floats{3});
}

}  // namespace
}  // namespace baleen::testing
