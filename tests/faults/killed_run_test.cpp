// Ranks and whole runs that are killed at moments nobody chose.
#include <signal.h>

#include <random>
#include <set>
#include <thread>

#include "support/shared_memory_files.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

using KilledRun = TrainingFixture;

// All of these processes are gone (a zombie that nobody has reaped counts as gone).
bool all_gone(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    const std::string status = read_text("/proc/" + std::to_string(process) + "/stat");
    if (!status.empty() && status.find(") Z") == std::string::npos) return false;
  }
  return true;
}

TEST_F(KilledRun, DeadRankEndsAllWith4AndIsNamed) {
  const std::set<std::string> segments = shared_memory_files();
  Command command(baleen_arguments(train_arguments("run", {"--ranks", "3", "--set", "training.steps=1000000", "--set",
                                                           "training.global_batch_size=6", "--set", "fault.max_restarts=0"})));
  wait_for_rows(command, "run", 5);
  const std::vector<pid_t> ranks = command.children();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[1], SIGKILL);
  const CommandResult result = command.wait(std::chrono::seconds(15));
  EXPECT_EQ(result.exit_code, 4) << result.error;
  // The last word names the first to fail, and how; the others say one line each.
  const std::string last =
      "\nbaleen: the first failure: rank 1 was killed by SIGKILL (the out-of-memory killer or a person); its last action: step ";
  ASSERT_NE(result.error.find(last), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find('\n', result.error.find(last) + 1), result.error.size() - 1) << result.error;
  EXPECT_NE(result.error.find("\nbaleen, rank 0 ends: rank 1 was killed by SIGKILL"), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("what to do"), std::string::npos) << result.error;
  EXPECT_TRUE(all_gone(ranks));
  EXPECT_EQ(shared_memory_files(), segments);
}

TEST_F(KilledRun, KilledLauncherTakesItsRanksAlong) {
  Command command(baleen_arguments(train_arguments("run", {"--ranks", "2", "--set", "training.steps=1000000"})));
  wait_for_rows(command, "run", 5);
  const std::vector<pid_t> ranks = command.children();
  ASSERT_EQ(ranks.size(), 2u);
  command.signal(SIGKILL);
  EXPECT_EQ(command.wait().signal, SIGKILL);
  for (int i = 0; i < 1000 && !all_gone(ranks); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(all_gone(ranks));
}

// A run that is killed 20 times, saving at every third step so that many kills fall into a save, ends with the bits of a run that was not.
// A run that gets to its end between two kills must have those bits too, and the next one starts anew.
TEST_F(KilledRun, TwentyKillsLoseNothing) {
  const std::vector<std::string> settings{"--ranks", "2",
                                          "--set",   "training.steps=60",
                                          "--set",   "checkpoint.every=3",
                                          "--set",   "checkpoint.keep=2",
                                          "--set",   "fault.max_restarts=0"};
  ASSERT_EQ(train("whole", settings).exit_code, 0);
  const auto expect_whole = [&] {
    EXPECT_EQ(record("killed"), record("whole"));
    EXPECT_EQ(weights("killed", "step_00000060"), weights("whole", "step_00000060"));
  };
  std::mt19937 random(20261129);
  long range = 400;  // ms; follows what the machine takes, so that kills fall into starts, steps and saves alike
  int kills = 0;
  for (int attempts = 0; kills < 20 && attempts < 60; ++attempts) {
    Command command(baleen_arguments(train_arguments("killed", settings)));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % static_cast<unsigned long>(range)));
    const std::vector<pid_t> ranks = command.children();
    if (!command.running()) {
      EXPECT_EQ(command.wait().exit_code, 0);
      expect_whole();
      std::filesystem::remove_all(folder / "killed");
      range = std::max(range / 2, 50L);
      continue;
    }
    if (kills % 2 == 0 && !ranks.empty())
      kill(ranks[random() % ranks.size()], SIGKILL);
    else
      command.signal(SIGKILL);
    const CommandResult result = command.wait(std::chrono::seconds(30));
    EXPECT_TRUE(result.exit_code == 4 || result.signal == SIGKILL || result.exit_code == 0) << result.exit_code << result.error;
    for (int i = 0; i < 3000 && !all_gone(ranks); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++kills;
    range += 20;
  }
  ASSERT_EQ(kills, 20);
  const CommandResult finished = train("killed", settings);
  ASSERT_EQ(finished.exit_code, 0) << finished.error;
  expect_whole();
}

}  // namespace
}  // namespace baleen::testing
