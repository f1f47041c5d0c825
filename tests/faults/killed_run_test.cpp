// Ranks and whole runs that are killed at moments nobody chose.
#include <signal.h>

#include <random>
#include <thread>

#include "e2e/training_fixture.h"

namespace baleen::testing {
namespace {

using KilledRun = TrainingFixture;

std::size_t shared_memory_segments() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/dev/shm")) ++count;
  return count;
}

// All of these processes are gone (a zombie that nobody has reaped counts as gone).
bool all_gone(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    const std::string status = read_text("/proc/" + std::to_string(process) + "/stat");
    if (!status.empty() && status.find(") Z") == std::string::npos) return false;
  }
  return true;
}

TEST_F(KilledRun, DeadRankEndsAllWith4AndIsNamed) {
  const std::size_t segments = shared_memory_segments();
  Command command(baleen_arguments(train_arguments("run", {"--ranks", "3", "--set", "training.steps=1000000", "--set", "training.global_batch_size=6"})));
  while (command.running() && rows("run").size() < 5) {
  }
  const std::vector<pid_t> ranks = command.children();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[1], SIGKILL);
  const CommandResult result = command.wait(std::chrono::seconds(15));
  EXPECT_EQ(result.exit_code, 4) << result.error;
  EXPECT_NE(result.error.find("rank 1"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("SIGKILL"), std::string::npos) << result.error;
  EXPECT_TRUE(all_gone(ranks));
  EXPECT_EQ(shared_memory_segments(), segments);
}

TEST_F(KilledRun, KilledLauncherTakesItsRanksAlong) {
  Command command(baleen_arguments(train_arguments("run", {"--ranks", "2", "--set", "training.steps=1000000"})));
  while (command.running() && rows("run").size() < 5) {
  }
  const std::vector<pid_t> ranks = command.children();
  ASSERT_EQ(ranks.size(), 2u);
  command.signal(SIGKILL);
  EXPECT_EQ(command.wait().signal, SIGKILL);
  for (int i = 0; i < 1000 && !all_gone(ranks); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(all_gone(ranks));
}

// A run that is killed 20 times, saving at every second step so that many kills fall into a save, ends with the bits of a run that was not.
TEST_F(KilledRun, TwentyKillsLoseNothing) {
  const std::vector<std::string> settings{"--ranks", "2", "--set", "training.steps=60", "--set", "checkpoint.every=2", "--set", "checkpoint.keep=2"};
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(train("whole", settings).exit_code, 0);
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  std::mt19937 random(20261129);
  int kills = 0;
  while (kills < 20) {
    Command command(baleen_arguments(train_arguments("killed", settings)));
    // A moment of the start, of the first steps or of the first saves.
    const auto moment = std::chrono::milliseconds(random() % static_cast<unsigned>(std::max<long long>(whole / 3, 100)));
    std::this_thread::sleep_for(moment);
    if (!command.running()) break;  // it got to its end between two kills
    const std::vector<pid_t> ranks = command.children();
    if (kills % 2 == 0 && !ranks.empty())
      kill(ranks[random() % ranks.size()], SIGKILL);
    else
      command.signal(SIGKILL);
    const CommandResult result = command.wait(std::chrono::seconds(30));
    EXPECT_TRUE(result.exit_code == 4 || result.signal == SIGKILL) << result.exit_code << result.error;
    for (int i = 0; i < 1000 && !all_gone(ranks); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++kills;
  }
  EXPECT_GE(kills, 10);  // most of the moments came before the end
  const CommandResult finished = train("killed", settings);
  ASSERT_EQ(finished.exit_code, 0) << finished.error;
  EXPECT_EQ(record("killed"), record("whole"));
  EXPECT_EQ(weights("killed", "step_00000060"), weights("whole", "step_00000060"));
}

}  // namespace
}  // namespace baleen::testing
