// What happens when a rank does not come, comes with something else, or gives up: everybody learns it, with the reason, and nobody hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>

#include "base/error.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using std::chrono::milliseconds;
using testing::all_ranks;
using ::testing::AnyOf;
using testing::failure_of;
using ::testing::HasSubstr;
using testing::run_members;
using testing::run_ranks;

TEST(Failure, ADeadlineNamesCommunicatorOperationAndBothRanks) {
  std::latch failed(2);
  run_members(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 1) {  // does not come; what it asks for later fails with the others' reason
          failed.wait();
        } else {
          std::vector<float> data(100'000);
          const std::string reason =
              failure_of([&] { comm.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum).wait(); });
          failed.count_down();
          EXPECT_THAT(reason, HasSubstr("communicator 'dp': all_reduce of 100000 fp32 (sum) on rank"));
          EXPECT_THAT(reason, HasSubstr("waited 1."));
          EXPECT_THAT(reason, HasSubstr("rank 1 is not in this communicator's operations"));
        }
        EXPECT_THAT(failure_of([&] { comm.barrier().wait(); }), HasSubstr("all_reduce"));  // and so does everything that follows
      },
      milliseconds(1000));
}

// Rank 0 waits for rank 2, which waits for rank 1: the blame must reach rank 1.
TEST(Failure, TheBlameFollowsTheChainOfWaits) {
  std::latch failed(2);
  run_members(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 1) return failed.wait();
        float value = 0;
        const std::string reason = failure_of([&] { comm.recv(&value, 1, DType::f32, comm.rank() == 0 ? 2 : 1).wait(); });
        EXPECT_THAT(reason, HasSubstr("rank 1 is not in this communicator's operations"));
        failed.count_down();
      },
      milliseconds(1000));
}

TEST(Failure, ReceiveDeadlineNamesThePeer) {
  std::latch failed(1);
  run_members(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) return failed.wait();
        float value = 0;
        EXPECT_THAT(failure_of([&] { comm.recv(&value, 1, DType::f32, 1).wait(); }), HasSubstr("send/recv of 1 fp32 on rank 0 waited 1."));
        failed.count_down();
      },
      milliseconds(1000));
}

TEST(Failure, AbortEndsAWaitAtOnceAndEverywhere) {
  run_ranks(4, [](World& world) {
    const auto comm = world.create_communicator(all_ranks(4), "dp");
    if (world.rank() == 3) {
      std::this_thread::sleep_for(milliseconds(50));  // the others are asleep by now; correct without, too
      world.abort("somebody pulled the plug");
    } else {
      std::vector<float> data(1'000'000);
      const Event reduced = comm->all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum);
      const Event next = comm->barrier();
      EXPECT_THAT(failure_of([&] { next.wait(); }), HasSubstr("pulled the plug"));
      EXPECT_THAT(failure_of([&] { reduced.wait(); }), HasSubstr("pulled the plug"));
      EXPECT_TRUE(reduced.ready());
    }
    if (!testing::over_tcp()) world.abort("too late to be the reason");  // there, each rank keeps the reason that reaches it first
    EXPECT_THAT(failure_of([&] { comm->barrier().wait(); }), HasSubstr("pulled the plug"));
  });
}

TEST(Failure, AbortOfACommunicatorLeavesOthersAlone) {
  run_ranks(2, [](World& world) {
    const auto first = world.create_communicator({0, 1}, "dp"), second = world.create_communicator({0, 1}, "tp");
    if (world.rank() == 0) first->abort("dp is over");
    EXPECT_THAT(failure_of([&] {
                  for (int round = 0; round < 2; ++round) first->barrier().wait();
                }),
                HasSubstr("dp is over"));
    std::int32_t one = 1;
    second->all_reduce(&one, &one, 1, DType::i32, ReduceOp::sum).wait();
    EXPECT_EQ(one, 2);
  });
}

TEST(Failure, ClosingWithPendingOperationsDoesNotHangAnyone) {
  // Whichever comes first: rank 0 closes, or what it waits for is seen not to be what rank 1 runs.
  const auto mismatch = HasSubstr("while rank 1 runs barrier");
  run_ranks(3, [&](World& world) {
    auto comm = world.create_communicator(all_ranks(3), "dp");
    if (world.rank() == 0) {
      float value = 0;
      const Event abandoned = comm->recv(&value, 1, DType::f32, 1);  // nobody sends it
      const Event behind = comm->barrier();
      comm.reset();
      EXPECT_THAT(failure_of([&] { abandoned.wait(); }),
                  AnyOf(HasSubstr("rank 0 closed communicator 'dp' with 2 operations pending"), mismatch));
      EXPECT_THAT(failure_of([&] { behind.wait(); }), AnyOf(HasSubstr("pending"), mismatch));
    } else {
      EXPECT_THAT(failure_of([&] {
                    for (int round = 0; round < 2; ++round) comm->barrier().wait();
                  }),
                  AnyOf(HasSubstr("pending"), mismatch));
    }
  });
}

TEST(Failure, DifferentOperationsAreAMismatchNotGarbage) {
  run_members(2, [](Communicator& comm) {
    std::vector<float> data(1000);
    const std::string reason = failure_of([&] {
      if (comm.rank() == 0)
        comm.all_reduce(data.data(), data.data(), 1000, DType::f32, ReduceOp::sum).wait();
      else
        comm.all_reduce(data.data(), data.data(), 1000, DType::f32, ReduceOp::max).wait();
      comm.barrier().wait();
    });
    EXPECT_THAT(reason, HasSubstr("all_reduce of 1000 fp32 (sum)"));
    EXPECT_THAT(reason, HasSubstr("all_reduce of 1000 fp32 (max)"));
  });
}

TEST(Failure, DifferentGroupsAreFoundWhenTheCommunicatorIsMade) {
  run_ranks(3, [](World& world) {
    const std::vector<int> group = world.rank() == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{1, 2};
    if (world.rank() == 0) {
      EXPECT_THAT(failure_of([&] { world.create_communicator(group, "dp"); }), HasSubstr("different groups or names"));
    } else {
      try {
        world.create_communicator(group, "dp")->barrier().wait();
      } catch (const Error&) {
        // Ranks 1 and 2 agree with each other; they may be through before rank 0 finds out.
      }
    }
  });
}

TEST(Failure, ACommunicatorThatNotAllMakeNamesTheMissingRank) {
  std::latch failed(1);
  run_ranks(
      2,
      [&](World& world) {
        if (world.rank() == 1) return failed.wait();
        EXPECT_THAT(failure_of([&] { world.create_communicator({0, 1}, "dp"); }), HasSubstr("create_communicator on rank 0 waited 1."));
        failed.count_down();
      },
      milliseconds(1000));
}

TEST(Failure, AFailedEventFailsWhatComesAfterIt) {
  class Broken final : public EventState {
   public:
    bool ready() const override { return true; }
    void wait() override { throw Error(ExitCode::bad_numbers, "the input is not finite"); }
  };
  run_members(2, [](Communicator& comm) {
    float value = 0;
    if (comm.rank() == 0) {
      const Event failed = comm.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, Event(std::make_shared<Broken>()));
      try {
        failed.wait();
        ADD_FAILURE() << "did not fail";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_numbers);  // its own failure, for its own exit code
      }
    } else {
      EXPECT_THAT(failure_of([&] { comm.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum).wait(); }), HasSubstr("not finite"));
    }
  });
}

}  // namespace
}  // namespace baleen
