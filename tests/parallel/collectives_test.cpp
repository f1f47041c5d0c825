// Collectives over ranks that are processes, started and watched by the launcher: what threads in one process cannot show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <string>

#include "launch/launcher.h"
#include "parallel/collective_programs.h"
#include "support/shared_memory_files.h"

namespace baleen {
namespace {

using ::testing::HasSubstr;
using testing::ranks_running;

// A job leaves no child, no descriptor and no file of ours in /dev/shm.
class ProcessRanks : public ::testing::Test {
 protected:
  void SetUp() override { descriptors_ = testing::open_descriptors(); }
  void TearDown() override {
    EXPECT_EQ(testing::open_descriptors(), descriptors_);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    for (const std::string& name : testing::shared_memory_files()) EXPECT_THAT(name, ::testing::Not(HasSubstr("baleen")));
  }

 private:
  std::size_t descriptors_ = 0;
};

class ProcessRanksOf : public ProcessRanks, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ProcessRanksOf, ::testing::Values(1, 2, 3, 4, 5, 8, 16), ::testing::PrintToStringParamName());

TEST_P(ProcessRanksOf, EveryCollectiveIsRight) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("collectives", GetParam()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
}

TEST_F(ProcessRanks, AKilledRankEndsTheJobAndIsNamed) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("killed", 4));
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_EQ(outcome.message, "rank 1 was killed by SIGKILL (the out-of-memory killer or a person)");
}

TEST_F(ProcessRanks, AFrozenRankIsFoundByItsPeersAndKilled) {
  LaunchOptions options = ranks_running("frozen", 3);
  options.grace = std::chrono::milliseconds(300);
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.message, HasSubstr("communicator 'dp': all_reduce of 300000 fp32 (avg)"));
  EXPECT_THAT(outcome.message, HasSubstr("rank 1"));
  EXPECT_THAT(outcome.message, HasSubstr("killed because it did not end in time: rank 1"));
}

TEST_F(ProcessRanks, TheCodeOfTheFirstFailureIsTheJobs) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("bad_data", 4));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.message, "rank 2 failed with exit code 3");
}

TEST_F(ProcessRanks, AStopRequestReachesAllAtTheSameStep) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("stop_together", 4));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.message;
}

TEST_F(ProcessRanks, RanksOfTorchrunFindEachOther) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("under_torchrun", 4));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
}

}  // namespace
}  // namespace baleen
