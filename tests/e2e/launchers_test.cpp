// Other launchers: their environments without them, and themselves where they are installed. torchrun comes from a virtual environment that
// scripts/reference-env.sh makes (BALEEN_REFERENCE_ENV names its folder) or from PATH, mpirun from the package openmpi-bin.
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "base/json.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

using Variables = std::map<std::string, std::string>;

// The program's path, or empty when it is neither in $BALEEN_REFERENCE_ENV/bin nor in PATH.
std::string find_program(const std::string& name) {
  std::vector<std::filesystem::path> folders;
  if (const char* reference = std::getenv("BALEEN_REFERENCE_ENV")) folders.push_back(std::filesystem::path(reference) / "bin");
  std::istringstream path(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');) folders.emplace_back(folder);
  for (const auto& folder : folders)
    if (access((folder / name).c_str(), X_OK) == 0) return folder / name;
  return "";
}

class Launchers : public TrainingFixture {
 protected:
  // What torchrun sets for a worker. The port names the job and need not be free: nobody listens there.
  static Variables torchrun_variables(int rank) {
    return {
        {"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},
        {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", std::to_string(20000 + getpid() % 20000)}};
  }
  // What mpirun sets, without the PMIx library's variables: the ranks know their job by their common parent.
  static Variables open_mpi_variables(int rank) {
    return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
            {"OMPI_COMM_WORLD_SIZE", "2"},
            {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  }
  // What `srun --mpi=none` sets: no PMIx here either. The job had more tasks than this step has.
  static Variables slurm_variables(int rank) {
    return {{"SLURM_PROCID", std::to_string(rank)},
            {"SLURM_LOCALID", std::to_string(rank)},
            {"SLURM_NTASKS", "8"},
            {"SLURM_STEP_NUM_TASKS", "2"},
            {"SLURM_STEP_NUM_NODES", "1"},
            {"SLURM_STEP_NODELIST", "localhost"},
            {"SLURM_STEP_TASKS_PER_NODE", "2"},
            {"SLURM_NODEID", "0"},
            {"SLURM_JOB_ID", std::to_string(getpid())},
            {"SLURM_STEP_ID", "0"}};
  }

  const std::vector<std::string> steps{"--set", "training.steps=6", "--set", "checkpoint.every=0"};

  // The run has the bits of one that baleen's own launcher made.
  void expect_own_bits(const std::string& run) {
    std::vector<std::string> own = steps;
    own.insert(own.end(), {"--ranks", "2"});
    const CommandResult result = train("own", own);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(rows(run).size(), 6u);
    EXPECT_EQ(record(run), record("own"));
    EXPECT_EQ(weights(run, "step_00000006"), weights("own", "step_00000006"));
  }
  void expect_own_bits_under(Variables (*variables)(int)) {
    const auto arguments = baleen_arguments(train_arguments("launched", steps));
    {
      Command first(arguments, variables(0)), second(arguments, variables(1));
      const CommandResult one = first.wait(), two = second.wait();
      ASSERT_EQ(one.exit_code, 0) << one.error;
      ASSERT_EQ(two.exit_code, 0) << two.error;
    }
    expect_own_bits("launched");
  }
  // `launcher` starts two ranks of the rest of the command line: each knows its place, they train as our own do, and --ranks is refused.
  void expect_launches(const std::vector<std::string>& launcher, const std::string& name) {
    const auto launch = [&](const std::vector<std::string>& command) {
      std::vector<std::string> line = launcher;
      for (const std::string& argument : baleen_arguments(command)) line.push_back(argument);
      return Command(line, {{"OMP_NUM_THREADS", "1"}}).wait(std::chrono::seconds(300));
    };
    const CommandResult doctor = launch({"doctor", "--json"});
    ASSERT_EQ(doctor.exit_code, 0) << doctor.error;
    std::set<std::string> places;
    std::istringstream lines(doctor.out);
    for (std::string line; std::getline(lines, line);) places.insert(dump_json(parse_json(line, "output")["launch"]));
    EXPECT_EQ(places, (std::set<std::string>{R"({"launcher":")" + name + R"(","local_rank":0,"local_size":2,"rank":0,"size":2})",
                                             R"({"launcher":")" + name + R"(","local_rank":1,"local_size":2,"rank":1,"size":2})"}));
    const CommandResult trained = launch(train_arguments("launched", steps));
    ASSERT_EQ(trained.exit_code, 0) << trained.error;
    expect_own_bits("launched");
    const CommandResult refused = launch(train_arguments("refused", {"--ranks", "2"}));
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_NE(refused.error.find("--ranks was given, but " + name), std::string::npos) << refused.error;
    EXPECT_FALSE(std::filesystem::exists(folder / "refused"));
  }
};

TEST_F(Launchers, TorchrunsVariables) {
  expect_own_bits_under(torchrun_variables);
}
TEST_F(Launchers, OpenMpisVariablesWithoutPmix) {
  expect_own_bits_under(open_mpi_variables);
}
TEST_F(Launchers, SrunsVariablesWithoutPmix) {
  expect_own_bits_under(slurm_variables);
}

TEST_F(Launchers, TorchrunItself) {
  const std::string torchrun = find_program("torchrun");
  if (torchrun.empty()) GTEST_SKIP() << "no torchrun; make one with scripts/reference-env.sh DIR and set BALEEN_REFERENCE_ENV=DIR";
  expect_launches({torchrun, "--standalone", "--no-python", "--nproc-per-node", "2"}, "torchrun");
}

TEST_F(Launchers, MpirunItself) {
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "no mpirun; install openmpi-bin";
  expect_launches({mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"}, "mpirun (Open MPI)");
}

TEST_F(Launchers, RanksThatReadOtherThingsAreRefused) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& name) {
    std::vector<std::string> other = steps;
    other.insert(other.end(), more.begin(), more.end());
    Command first(baleen_arguments(train_arguments("run", steps)), torchrun_variables(0)),
        second(baleen_arguments(train_arguments("run", other)), torchrun_variables(1));
    const CommandResult one = first.wait(), two = second.wait();
    EXPECT_EQ(one.exit_code, 2) << one.error;
    EXPECT_EQ(two.exit_code, 2) << two.error;
    EXPECT_NE(two.error.find(name), std::string::npos) << two.error;
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  };
  refused({"--set", "optimizer.lr=0.03"}, "the ranks do not agree on optimizer.lr: rank 1 has 0.0");
  refused({"--set", "checkpoint.every=1"}, "checkpoint.every");
  refused({"--set", "data.seed=7"}, "data.seed");
  refused({"--resume", "never"}, "--resume");
  // A file of the same name and length.
  std::filesystem::create_directory(folder / "stale");
  write_text(folder / "stale/corpus.json", read_text(folder / "corpus.json"));
  std::string tokens = read_text(folder / "corpus.bin");
  std::swap(tokens[1024], tokens[1028]);
  write_text(folder / "stale/corpus.bin", tokens);
  refused({"--set", "data.train=" + (folder / "stale/corpus.bin")}, "the data of data.train");
}

TEST_F(Launchers, RanksGivenBesideThemAreRefused) {
  const std::pair<Variables, std::string> launchers[]{
      {torchrun_variables(0), "torchrun"}, {open_mpi_variables(0), "mpirun"}, {slurm_variables(0), "srun"}};
  for (const auto& [variables, name] : launchers) {
    Command command(baleen_arguments(train_arguments("run", {"--ranks", "2"})), variables);
    const CommandResult result = command.wait();
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.error.find(name), std::string::npos) << result.error;
    EXPECT_NE(result.error.find("--ranks"), std::string::npos) << result.error;
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
}

// Advice that can be followed where another launcher has started the ranks: --ranks is refused there.
TEST_F(Launchers, DegreesThatDoNotFitAreTheLaunchersMatter) {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    const CommandResult result = Command(baleen_arguments(arguments), torchrun_variables(0)).wait();
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_EQ(result.error.find("--ranks"), std::string::npos) << result.error;
    return result.error;
  };
  const std::string data = refusal(train_arguments("run", {"--set", "parallelism.data=3"}));
  EXPECT_NE(data.find("start 3 ranks with torchrun, or set parallelism.data = -1"), std::string::npos) << data;
  const std::string tensor = refusal(train_arguments("run", {"--set", "parallelism.data=1", "--set", "parallelism.tensor=4"}));
  EXPECT_NE(tensor.find("start 4 ranks with torchrun, or change the degrees"), std::string::npos) << tensor;
  const std::string layout = refusal({"verify", folder / "config.toml", "--layouts", "dp=3"});
  EXPECT_NE(layout.find("start 3 ranks with torchrun"), std::string::npos) << layout;
  const std::string evaluated = refusal({"eval", folder / "run", "--data", "x.bin", "--layout", "dp=3"});
  EXPECT_NE(evaluated.find("start 3 ranks with torchrun"), std::string::npos) << evaluated;
}

TEST_F(Launchers, ContradictionsAreRefused) {
  const auto refusal = [&](Variables variables, const std::string& name, const char* value) {
    variables[name] = value;
    const CommandResult result = Command(baleen_arguments(train_arguments("run")), variables).wait();
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_NE(result.error.find("environment variable " + name), std::string::npos) << result.error;
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  };
  refusal(torchrun_variables(0), "RANK", "2");
  refusal(torchrun_variables(0), "LOCAL_RANK", "-1");
  refusal(open_mpi_variables(0), "OMPI_COMM_WORLD_RANK", "two");
  refusal(slurm_variables(0), "SLURM_PROCID", "5");
}

TEST_F(Launchers, DoctorNamesTheCoresOfRanksAndTheVariableRulesThem) {
  const auto doctor = [](const Variables& variables) { return run_command(baleen_arguments({"doctor", "--json"}), variables); };
  const CommandResult two = doctor(torchrun_variables(0));
  ASSERT_EQ(two.exit_code, 0) << two.error;
  const auto binding = parse_json(two.out, "doctor")["binding"];
  EXPECT_EQ(binding["local_ranks"], 2);
  if (std::thread::hardware_concurrency() > 1) {
    ASSERT_EQ(binding["cores"].size(), 2u) << binding;
    EXPECT_NE(binding["cores"][0], binding["cores"][1]);
  }
  Variables none = torchrun_variables(0);
  none["BALEEN_BINDING"] = "none";
  EXPECT_TRUE(parse_json(doctor(none).out, "doctor")["binding"]["cores"].empty());
  const CommandResult wrong = run_command(baleen_arguments(train_arguments("run", {"--ranks", "2"})), {{"BALEEN_BINDING", "cores"}});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.error;
  EXPECT_NE(wrong.error.find("BALEEN_BINDING"), std::string::npos) << wrong.error;
}

// A run that goes on can have had another newest checkpoint when the other rank looked: here each is given its own.
TEST_F(Launchers, RanksOfEvalDoNotMixCheckpoints) {
  ASSERT_EQ(train("run", {"--set", "training.steps=2", "--set", "checkpoint.every=1"}).exit_code, 0);
  const auto eval = [&](int rank, int step) {
    return baleen_arguments(
        {"eval", folder / ("run/checkpoints/step_0000000" + std::to_string(rank == 0 ? 1 : step)), "--data", folder / "corpus.val.bin"});
  };
  for (const int step : {1, 2}) {
    Command one(eval(0, step), torchrun_variables(0)), other(eval(1, step), torchrun_variables(1));
    const CommandResult first = one.wait(), second = other.wait();
    EXPECT_EQ(second.exit_code, step == 1 ? 0 : 3) << second.error;
    EXPECT_EQ(first.exit_code == 0, step == 1) << first.error;
    EXPECT_EQ(second.error.find("step 2, and rank 0 that of step 1") != std::string::npos, step == 2) << second.error;
  }
}

// `srun --pty bash` makes a step of one task, and a shell in it is no rank.
TEST_F(Launchers, AShellOfSrunStartsItsOwnRanks) {
  Variables shell = slurm_variables(0);
  shell["SLURM_STEP_NUM_TASKS"] = shell["SLURM_NTASKS"] = shell["SLURM_STEP_TASKS_PER_NODE"] = "1";
  std::vector<std::string> arguments = train_arguments("run", steps);
  arguments.insert(arguments.end(), {"--ranks", "2"});
  const CommandResult result = Command(baleen_arguments(arguments), shell).wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

}  // namespace
}  // namespace baleen::testing
