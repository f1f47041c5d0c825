// Gathers and reduce-scatters by copy engines: ranks are processes, each with a GPU of its own.
#include <gtest/gtest.h>

#include "comm/gpu/peer_communicator.h"
#include "comm/staged_communicator.h"
#include "comm/thread_ranks.h"
#include "device/gpu.h"
#include "gpu/peer_programs.h"
#include "launch/launcher.h"
#include "ops/sum_parts.h"

namespace baleen::testing {
namespace {

class PeerCopies : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::size_t gpus = list_gpus().gpus.size();
    if (gpus < static_cast<std::size_t>(GetParam())) GTEST_SKIP() << "this machine has " << gpus << " GPUs";
  }
  static void expect_right(const char* program) {
    const LaunchOutcome outcome = launch_ranks(ranks_running(program, GetParam()));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, PeerCopies, ::testing::Values(2, 4), ::testing::PrintToStringParamName());

TEST_P(PeerCopies, GathersInPlaceAndOutOfIt) {
  expect_right("gathers");
}

TEST_P(PeerCopies, ReduceScattersSumInTheOrderOfTheRing) {
  expect_right("reduce_scatters");
}

TEST_P(PeerCopies, Bf16IsAddedInFp32AndRoundedOnce) {
  expect_right("bf16");
}

TEST_P(PeerCopies, WhatIsSmallOrNotAnnouncedGoesToTheOtherInOrder) {
  expect_right("mixed");
}

TEST_P(PeerCopies, ARankThatDoesNotComeEndsTheWait) {
  expect_right("absent");
}

TEST_P(PeerCopies, ARankThatGivesUpEndsWithTheOthers) {
  expect_right("given_up");
}

TEST_P(PeerCopies, ARankThatGivesUpEndsWithTheOthersOverTheLibrary) {
  expect_right("given_up_over_the_library");
}

TEST_P(PeerCopies, MemoryOfDifferentSizesIsNotCopied) {
  expect_right("uneven");
}

// Threads of one process get the library's way, and the reason.
TEST(PeerThreads, AreNoPeers) {
  if (!gpu_available()) GTEST_SKIP() << list_gpus().why_none;
  run_ranks(2, [](World& world) {
    const auto device = create_gpu_device(0);
    const auto stream = device->create_stream();
    PeerCommunicator comm(std::make_unique<StagedCommunicator>(world.create_communicator({0, 1}, "dp"), *device), *device,
                          std::chrono::seconds(20));
    const std::size_t count = PeerCommunicator::fewest_gathered;
    const Buffer all = device->allocate("all", 2 * count * sizeof(float));
    EXPECT_EQ(comm.announce(all.data(), all.bytes(), MemoryUse::reduced), nullptr);
    stream->wait(comm.all_gather(all.as<float>() + static_cast<std::size_t>(world.rank()) * count, all.data(), count, DType::f32));
    stream->synchronize();
    EXPECT_EQ(comm.copied_operations(), 0u);
  });
}

TEST(SumParts, AddsInOrderWhateverTheAlignment) {
  if (!gpu_available()) GTEST_SKIP() << list_gpus().why_none;
  constexpr float third = 1.0f / 3;
  const auto device = create_gpu_device(0);
  const auto stream = device->create_stream();
  for (const std::int64_t elements : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{4097}})
    for (const std::size_t parts : {std::size_t{1}, std::size_t{2}, ops::most_parts})
      for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
        std::vector<Buffer> buffers;
        std::vector<Tensor> tensors;
        std::vector<float> wanted(static_cast<std::size_t>(elements), 0.0f);
        for (std::size_t part = 0; part < parts; ++part) {
          buffers.push_back(device->allocate("part", (static_cast<std::size_t>(elements) + shift) * sizeof(float)));
          std::vector<float> given(static_cast<std::size_t>(elements));
          for (std::size_t i = 0; i < given.size(); ++i) given[i] = 1.0f / static_cast<float>((i * 7 + part * 5) % 1009 + 1);
          for (std::size_t i = 0; i < given.size(); ++i) wanted[i] = part == 0 ? given[i] : wanted[i] + given[i];
          float* const place = buffers.back().as<float>() + shift;
          stream->copy(place, given.data(), given.size() * sizeof(float));
          stream->synchronize();
          tensors.emplace_back(place, DType::f32, std::initializer_list<std::int64_t>{elements});
        }
        const Tensor& out = tensors.front();
        std::vector<float> got(wanted.size()), more(wanted.size());
        ops::gpu::sum_parts(*stream, out, tensors, third);
        stream->copy(got.data(), out.data(), out.bytes());
        ops::gpu::sum_parts(*stream, out, std::span(tensors).subspan(parts - 1), third, true);
        stream->copy(more.data(), out.data(), out.bytes());
        stream->synchronize();
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i], third * wanted[i]) << parts << " parts, " << i;
          const float last = parts == 1 ? got[i] : 1.0f / static_cast<float>((i * 7 + (parts - 1) * 5) % 1009 + 1);
          const float scaled = third * last;  // rounded before it is added
          ASSERT_EQ(more[i], got[i] + scaled) << parts << " parts, " << i;
        }
      }
}

}  // namespace
}  // namespace baleen::testing
