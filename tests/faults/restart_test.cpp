// Ranks that are started again from the last checkpoint.
#include <fmt/format.h>
#include <signal.h>

#include <random>
#include <thread>

#include "faults/fault_fixture.h"

namespace baleen::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Restart : public FaultTest {
 protected:
  std::vector<std::string> restarting(int restarts, const std::vector<std::string>& more) const {
    std::vector<std::string> settings = with_ranks({"--set", "fault.max_restarts=" + std::to_string(restarts)});
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  void expect_kills_to_lose_nothing(int wanted);
};
INSTANTIATE_TEST_SUITE_P(, Restart, ::testing::ValuesIn(fault_layouts()), [](const auto& layout) { return layout.param.name; });

// One run, of which random ranks are killed at random moments: of starts, steps and saves alike. It has no end of its own, so that it
// cannot come to it before the last kill, however fast the machine; then it is asked to stop, and goes on for some steps.
void Restart::expect_kills_to_lose_nothing(int wanted) {
  const auto settings = [&](std::size_t steps) {
    return restarting(1000,
                      {"--set", "training.steps=" + std::to_string(steps), "--set", "checkpoint.every=2", "--set", "checkpoint.keep=2"});
  };
  std::mt19937 random(20261130);
  const auto begin = std::chrono::steady_clock::now();
  Command command(baleen_arguments(train_arguments("run", settings(1'000'000))));
  double range = 800;  // ms; longer when a start was killed before it trained, shorter when it got further
  std::size_t trained = 0;
  int kills = 0;
  while (command.running() && kills < wanted) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(range * static_cast<double>(random() % 1000) / 1000));
    if (kills + 1 == wanted) wait_for_rows(command, "run", trained + 6);  // one at least after a checkpoint, however slow the starts
    const std::vector<pid_t> ranks = command.children();
    if (ranks.empty()) continue;
    kills += kill(ranks[random() % ranks.size()], SIGKILL) == 0 ? 1 : 0;
    const std::size_t now = rows("run").size();
    range = std::clamp(now > trained ? range * 0.8 : range * 1.3, 50.0, 5000.0);
    trained = std::max(trained, now);
  }
  const double seconds_of_kills = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  wait_for_rows(command, "run", trained + 10);
  command.signal(SIGTERM);
  const CommandResult result = command.wait(seconds(120));
  EXPECT_EQ(result.exit_code, 75) << result.error;
  EXPECT_EQ(kills, wanted);
  EXPECT_NE(result.error.find("was killed by SIGKILL"), std::string::npos);
  EXPECT_NE(result.error.find("; restart 1 of 1000 from the checkpoint of step "), std::string::npos);
  const std::size_t steps = rows("run").size() + 5;
  ASSERT_EQ(train("run", settings(steps)).exit_code, 0);
  ASSERT_EQ(train("whole", settings(steps)).exit_code, 0);
  EXPECT_EQ(record("run"), record("whole"));
  const std::string last = fmt::format("step_{:08}", steps);
  EXPECT_EQ(weights("run", last), weights("whole", last));
  std::printf("%d SIGKILLs of random ranks within %.0f s in one run of %zu steps, %s: the weights are those of an undisturbed run\n", kills,
              seconds_of_kills, steps, GetParam().name);
}

TEST_P(Restart, SixKillsLoseNothing) {
  expect_kills_to_lose_nothing(6);
}
TEST_P(Restart, HundredKillsLoseNothing) {
  expect_kills_to_lose_nothing(100);
}

TEST_P(Restart, GivesUpWithoutANewCheckpoint) {
  Command command(
      baleen_arguments(train_arguments("run", restarting(2, {"--set", "training.steps=1000000", "--set", "checkpoint.every=0"}))));
  std::vector<pid_t> killed;
  while (command.running()) {
    const std::vector<pid_t> ranks = command.children();
    if (ranks.size() == 4 && (killed.empty() || killed.back() != ranks[0])) {
      kill(ranks[0], SIGKILL);
      killed.push_back(ranks[0]);
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 4) << result.error;
  EXPECT_EQ(killed.size(), 3u);
  EXPECT_NE(result.error.find("restart 2 of 2 from the beginning"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("given up after 2 restarts without a new checkpoint"), std::string::npos) << result.error;
}

// `--resume never` deletes what is there, once.
TEST_P(Restart, AnewMeansAnewOnce) {
  const std::vector<std::string> more{"--set", "training.steps=30", "--set", "checkpoint.every=3"};
  ASSERT_EQ(train("whole", restarting(0, more)).exit_code, 0);
  ASSERT_EQ(train("run", restarting(0, {"--set", "training.steps=10", "--set", "training.seed=7"})).exit_code, 0);
  auto arguments = train_arguments("run", restarting(3, more));
  arguments.insert(arguments.end(), {"--resume", "never"});
  Command command(baleen_arguments(arguments));
  // The old run has its rows until the new one begins.
  for (std::size_t count = 0; command.running() && (count < 8 || count == 10); count = rows("run").size())
    std::this_thread::sleep_for(milliseconds(1));
  const std::vector<pid_t> ranks = command.children();
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks[3], SIGKILL);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.error.find("restart 1 of 3"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("resumed from step "), std::string::npos) << result.error;
  EXPECT_EQ(record("run"), record("whole"));
}

TEST_P(Restart, BadNumbersAreNot) {
  const CommandResult result = train("run", restarting(3, {"--set", "optimizer.lr=1e30", "--set", "training.gradient_clip=0"}));
  EXPECT_EQ(result.exit_code, 5) << result.error;
  EXPECT_EQ(result.error.find("restart 1"), std::string::npos) << result.error;
}

}  // namespace
}  // namespace baleen::testing
