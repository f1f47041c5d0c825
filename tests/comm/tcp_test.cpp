// The suite of every backend over TCP: this program again, with ranks as threads that connect through the loopback interface. Sums have the
// built-in backend's bits, so nothing about them is left out; messages about deadlines are shorter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "comm/thread_ranks.h"
#include "support/command.h"

namespace baleen {
namespace {

using testing::failure_of;

class OverTcp : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Suite, OverTcp,
                         ::testing::Values("*Collectives.*/2:*Collectives.*/3", "*Collectives.*/5", "PointToPoint.*:Ranks/Ring.*",
                                           "Failure.Abort*:Failure.Closing*:Failure.Different*:Failure.AFailedEvent*",
                                           "World.OneCommunicator*:World.RanksMay*:World.*Bytes*:World.LeavesNo*:TcpRank.*"));

TEST_P(OverTcp, EveryTestPasses) {
  if (testing::over_tcp() || testing::over_mpi()) GTEST_SKIP() << "this is the suite";
  testing::Command command({std::filesystem::read_symlink("/proc/self/exe"), "--gtest_filter=" + GetParam() + "-*Suite*"},
                           {{testing::backend_variable, "tcp"}, {"GTEST_COLOR", "no"}});
  const testing::CommandResult result = command.wait(std::chrono::seconds(240));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.error;
  EXPECT_EQ(result.out.find("[  PASSED  ] 0 tests"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("[  SKIPPED ]"), std::string::npos) << result.out;
}

class TcpRank : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::over_tcp()) GTEST_SKIP() << "runs over TCP, started by OverTcp";
  }
};

TEST_F(TcpRank, ADeadlineNamesTheRankWaitedFor) {
  testing::run_members(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        float value = 0;
        EXPECT_THAT(failure_of([&] { comm.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum).wait(); }),
                    ::testing::HasSubstr("waited 1.0 s for rank 1"));
        EXPECT_THAT(failure_of([&] { comm.recv(&value, 1, DType::f32, 1).wait(); }), ::testing::HasSubstr("waited 1.0 s for rank 1"));
      },
      std::chrono::milliseconds(1000));
}

// A rank that dies closes its connections: nobody waits for the deadline.
TEST_F(TcpRank, AnEndedConnectionIsNoticedAtOnce) {
  auto worlds = testing::create_tcp_worlds(2, std::chrono::seconds(60));
  std::jthread second([&] {
    worlds[1]->create_communicator({0, 1}, "dp")->barrier().wait();
    worlds[1].reset();
  });
  const auto comm = worlds[0]->create_communicator({0, 1}, "dp");
  comm->barrier().wait();
  const auto begin = std::chrono::steady_clock::now();
  float value = 0;
  EXPECT_THAT(failure_of([&] { comm->recv(&value, 1, DType::f32, 1).wait(); }), ::testing::HasSubstr("rank 1, whose connection has ended"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

}  // namespace
}  // namespace baleen
