// Training over MPI and over TCP, as jobs on several machines do: the same losses as over shared memory, runs that survive a killed and a
// stopped rank, and two hosts that are network namespaces.
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <sstream>
#include <thread>

#include "support/paths.h"
#include "support/reserved_port.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

using Variables = std::map<std::string, std::string>;
const Variables as_root{{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}, {"OMP_NUM_THREADS", "1"}};

class Clusters : public TrainingFixture {
 protected:
  static bool mpi_is_here() {
    return std::system("command -v mpirun >/dev/null 2>&1") == 0 &&
           run_baleen({"doctor", "--json"}).out.find(R"("MPI":"")") == std::string::npos;
  }
  std::vector<std::string> over_mpi(int ranks, const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> line{"mpirun", "--oversubscribe", "-n", std::to_string(ranks)};
    for (const std::string& argument : baleen_arguments(train_arguments(run, {"--set", "comm.backend=mpi"}))) line.push_back(argument);
    line.insert(line.end(), more.begin(), more.end());
    return line;
  }
  // Sends `signal` to one rank of a run under way, and runs it again to an end: as if nothing had happened, to the bit.
  void expect_survives(int signal) {
    if (!mpi_is_here()) GTEST_SKIP() << "no MPI; install libopenmpi-dev and openmpi-bin and build again";
    const auto settings = [](std::size_t steps) {
      return std::vector<std::string>{"--set", "training.steps=" + std::to_string(steps),
                                      "--set", "checkpoint.every=5",
                                      "--set", "comm.timeout_s=3",
                                      "--set", "parallelism.zero=1"};
    };
    {
      Command command(over_mpi(2, "run", settings(1'000'000)), as_root);
      wait_for_rows(command, "run", 12);
      const std::vector<pid_t> ranks = command.children();
      ASSERT_EQ(ranks.size(), 2u);
      kill(ranks[1], signal);
      const CommandResult result = command.wait(std::chrono::seconds(60));
      EXPECT_NE(result.exit_code, 0);
      if (signal == SIGSTOP) {
        EXPECT_NE(result.error.find("rank 1 does not answer: stopped, dead or unreachable"), std::string::npos) << result.error;
      }
    }
    const std::size_t steps = rows("run").size() + 10;
    const CommandResult again = Command(over_mpi(2, "run", settings(steps)), as_root).wait(std::chrono::seconds(120));
    ASSERT_EQ(again.exit_code, 0) << again.error;
    std::vector<std::string> own = settings(steps);
    own.insert(own.end(), {"--ranks", "2"});
    ASSERT_EQ(train("own", own).exit_code, 0);
    EXPECT_EQ(rows("run").size(), steps);
    EXPECT_EQ(record("run"), record("own"));
  }
};

// To the bit: MPI carries messages, and the sums are the built-in backend's.
TEST_F(Clusters, MpiTrainsWithTheBitsOfSharedMemory) {
  if (!mpi_is_here()) GTEST_SKIP() << "no MPI; install libopenmpi-dev and openmpi-bin and build again";
  for (const std::string layout : {"parallelism.zero=2", "parallelism.tensor=2", "parallelism.pipeline=2"}) {
    const CommandResult result =
        Command(over_mpi(4, layout, {"--set", "training.steps=12", "--set", layout, "--trace", folder / "step.json"}), as_root)
            .wait(std::chrono::seconds(120));
    ASSERT_EQ(result.exit_code, 0) << layout << result.error;
    ASSERT_EQ(train("own", {"--ranks", "4", "--set", "training.steps=12", "--set", layout}).exit_code, 0);
    EXPECT_EQ(record(layout), record("own")) << layout;
    std::filesystem::remove_all(folder / "own");
  }
  const std::string trace = read_text(folder / "step.json");
  for (const char* part : {"rank 3", "comm dp", "comm pp activations", "all_reduce", "send", "recv"})
    EXPECT_NE(trace.find(part), std::string::npos) << part;
}

TEST_F(Clusters, ARunOverMpiSurvivesAKilledRank) {
  expect_survives(SIGKILL);
}
TEST_F(Clusters, ARunOverMpiSurvivesAStoppedRank) {
  expect_survives(SIGSTOP);
}

TEST_F(Clusters, MpiWithoutItsLauncherIsRefused) {
  if (!mpi_is_here()) GTEST_SKIP() << "no MPI; install libopenmpi-dev and openmpi-bin and build again";
  const CommandResult result = train("run", {"--ranks", "2", "--set", "comm.backend=mpi"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.error.find("mpirun -n 2"), std::string::npos) << result.error;
  const CommandResult tcp = train("run", {"--ranks", "2", "--set", "comm.backend=tcp"});
  EXPECT_EQ(tcp.exit_code, 2);
  const CommandResult nccl = train("run", {"--set", "training.device=cpu", "--set", "comm.backend=nccl"});
  EXPECT_EQ(nccl.exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

// TCP has the bits of shared memory.
TEST_F(Clusters, TcpTrainsWithTheBitsOfSharedMemory) {
  ASSERT_EQ(train("own", {"--ranks", "2", "--set", "training.steps=12"}).exit_code, 0);
  const auto arguments = baleen_arguments(train_arguments("run", {"--set", "training.steps=12", "--set", "comm.backend=tcp"}));
  const ReservedPort port;
  const auto variables = [&](int rank) {
    return Variables{{"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},
                     {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(port.number())}};
  };
  Command first(arguments, variables(0)), second(arguments, variables(1));
  const CommandResult one = first.wait(), two = second.wait();
  ASSERT_EQ(one.exit_code, 0) << one.error;
  ASSERT_EQ(two.exit_code, 0) << two.error;
  EXPECT_EQ(record("run"), record("own"));
  EXPECT_EQ(weights("run", "step_00000012"), weights("own", "step_00000012"));
}

TEST_F(Clusters, SeveralHostsNeedAnAddressAndASecret) {
  const auto refusal = [&](Variables more, const std::string& why) {
    more.insert({{"RANK", "1"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}, {"MASTER_PORT", "29500"}});
    const CommandResult result = Command(baleen_arguments(train_arguments("run")), more).wait();
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_NE(result.error.find(why), std::string::npos) << result.error;
  };
  refusal({{"MASTER_ADDR", "192.0.2.1"}}, "BALEEN_SECRET_FILE");
  refusal({{"MASTER_ADDR", "192.0.2.1"}, {"BALEEN_SECRET_FILE", "/no/such/file"}}, "cannot open the job's secret");
  refusal({{"MASTER_ADDR", "192.0.2.1"}, {"BALEEN_PORT", "0"}}, "BALEEN_PORT");
}

TEST_F(Clusters, TwoHosts) {
  for (const char* launcher : {"mpirun", "torchrun"}) {
    if (launcher == std::string("mpirun") && !mpi_is_here()) continue;
    const CommandResult result = Command({source_path("scripts/two-hosts.sh").string(), launcher, "2", "verify", folder / "config.toml",
                                          "--layouts", "dp=2,tp=2;pp=2,dp=2,zero=1", "--json"},
                                         {{"BALEEN", baleen_binary().string()}, {"OMP_NUM_THREADS", "1"}})
                                     .wait(std::chrono::seconds(120));
    if (result.exit_code == 3) GTEST_SKIP() << result.error;
    EXPECT_EQ(result.exit_code, 0) << launcher << result.out << result.error;
    EXPECT_EQ(result.out.find(R"("ok":false)"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find(R"("layout":"dp=2,tp=2")"), std::string::npos) << result.out;
  }
}

}  // namespace
}  // namespace baleen::testing
