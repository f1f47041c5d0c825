// The suite of every backend over MPI: this program again, under mpirun, with one rank a process. Left out are the tests whose
// ranks meet in one process's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "comm/thread_ranks.h"
#include "support/command.h"

namespace baleen {
namespace {

using testing::failure_of;
using ::testing::HasSubstr;
using testing::over_mpi;
using testing::run_members;
using testing::run_ranks;

std::size_t occurrences(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

struct Run {
  int ranks;
  std::string filter;
  const char* linger = "0";  // seconds: mpirun kills the rest when the first rank of a failed job leaves
};
void PrintTo(const Run& run, std::ostream* out) {
  *out << run.ranks << " " << run.filter;
}

class OverMpi : public ::testing::TestWithParam<Run> {};

const std::string one_process_only = "-*HoldsEveryoneBack*";
INSTANTIATE_TEST_SUITE_P(
    Suite, OverMpi,
    ::testing::Values(Run{1, "*Collectives.*/1" + one_process_only}, Run{2, "*Collectives.*/2" + one_process_only},
                      Run{3, "*Collectives.*/3:World.WindowsAreUsedAgain" + one_process_only},
                      Run{4, "*Collectives.*/4:World.RanksMay*:World.*TheBytes*" + one_process_only},
                      Run{5, "*Collectives.*/5:*AllToAllThenACollective" + one_process_only},
                      Run{2,
                          "PointToPoint.Both*:PointToPoint.Messages*:PointToPoint.Starts*:PointToPoint.Collectives*:PointToPoint.Refuses*"},
                      Run{3, "PointToPoint.ASend*:Ranks/Ring.*/3"}, Run{2, "Ranks/Ring.*/2"}, Run{5, "Ranks/Ring.*/5"},
                      Run{8, "World.OneCommunicatorAnAxis*"}, Run{4, "Failure.AbortEndsAWait*", "1"},
                      Run{2, "Failure.AbortOfACommunicator*", "1"}, Run{3, "Failure.ClosingWithPending*", "1"},
                      Run{3, "Failure.DifferentGroups*", "1"}, Run{2, "Failure.AFailedEvent*", "1"}, Run{3, "MpiRank.ADeadline*", "3"},
                      Run{2, "MpiRank.AMissingPeer*", "3"}, Run{2, "MpiRank.ANotMadeOne*", "3"},
                      Run{2, "MpiRank.DifferentOperations*", "1"}, Run{2, "MpiRank.AShorterMessage*", "1"}));

// A failed job ends without MPI_Finalize, which mpirun reports as a failure: what counts is what the ranks say.
TEST_P(OverMpi, EveryRankPasses) {
  if (over_mpi()) GTEST_SKIP() << "this is a rank";
  if (mpi_library().empty()) GTEST_SKIP() << "this build has no MPI; install libopenmpi-dev and build again";
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun; install openmpi-bin";
  const auto [ranks, filter, linger] = GetParam();
  testing::Command command({"mpirun", "--oversubscribe", "-n", std::to_string(ranks), std::filesystem::read_symlink("/proc/self/exe"),
                            "--gtest_filter=" + filter},
                           {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                            {testing::backend_variable, "mpi"},
                            {testing::linger_variable, linger},
                            {"GTEST_COLOR", "no"}});
  const testing::CommandResult result = command.wait(std::chrono::seconds(240));
  EXPECT_EQ(occurrences(result.out, "[  PASSED  ]"), static_cast<std::size_t>(ranks)) << result.out << result.error;
  EXPECT_EQ(occurrences(result.out, "[  PASSED  ] 0 tests"), 0u) << result.out;
  EXPECT_EQ(occurrences(result.out, "[  FAILED  ]"), 0u);
}

// What only MPI promises, run by the test above.
class MpiRank : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!over_mpi()) GTEST_SKIP() << "runs under mpirun, started by OverMpi";
  }
};

TEST_F(MpiRank, ADeadlineNamesTheRankThatHasNotCome) {
  run_members(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        std::vector<float> data(100'000);
        const std::string reason =
            failure_of([&] { comm.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum).wait(); });
        EXPECT_THAT(reason, HasSubstr("communicator 'dp': all_reduce of 100000 fp32 (sum) on rank"));
        EXPECT_THAT(reason, HasSubstr("waited 1.0 s; rank 1 is not in this communicator's operations"));
        EXPECT_THAT(reason, ::testing::Not(HasSubstr("rank 2 is not")));
        EXPECT_THAT(failure_of([&] { comm.barrier().wait(); }), HasSubstr("all_reduce"));  // and so does everything that follows
      },
      std::chrono::milliseconds(1000));
}

TEST_F(MpiRank, AMissingPeerIsNamed) {
  run_members(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        float value = 0;
        EXPECT_THAT(failure_of([&] { comm.recv(&value, 1, DType::f32, 1).wait(); }),
                    HasSubstr("send/recv of 1 fp32 on rank 0 waited 1.0 s for rank 1; rank 1 answers"));
      },
      std::chrono::milliseconds(1000));
}

TEST_F(MpiRank, ANotMadeOneNamesTheMissingRank) {
  run_ranks(
      2,
      [&](World& world) {
        if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        EXPECT_THAT(failure_of([&] { world.create_communicator({0, 1}, "dp"); }),
                    HasSubstr("create_communicator on rank 0 waited 1.0 s; rank 1 is not in this"));
      },
      std::chrono::milliseconds(1000));
}

TEST_F(MpiRank, DifferentOperationsAreAFailure) {
  run_members(
      2,
      [](Communicator& comm) {
        std::vector<float> data(1000);
        const std::string reason = failure_of([&] {
          if (comm.rank() == 0)
            comm.all_reduce(data.data(), data.data(), 1000, DType::f32, ReduceOp::sum).wait();
          else
            comm.barrier().wait();
          comm.barrier().wait();
        });
        // One of the two ranks finds out first, by a message that is too long or by the deadline.
        EXPECT_THAT(reason, ::testing::AnyOf(HasSubstr("all_reduce of 1000 fp32 (sum)"), HasSubstr("barrier")));
      },
      std::chrono::milliseconds(1000));
}

TEST_F(MpiRank, AShorterMessageIsAnError) {
  run_members(2, [](Communicator& comm) {
    std::vector<float> data(1000);
    if (comm.rank() == 0) {
      EXPECT_THAT(failure_of([&] {
                    comm.send(data.data(), 999, DType::f32, 1).wait();  // may hear of it already
                    for (int round = 0; round < 2; ++round) comm.barrier().wait();
                  }),
                  HasSubstr("expects 4000 bytes, but 3996 came"));
    } else {
      EXPECT_THAT(failure_of([&] { comm.recv(data.data(), 1000, DType::f32, 0).wait(); }), HasSubstr("expects 4000 bytes, but 3996 came"));
    }
  });
}

}  // namespace
}  // namespace baleen
