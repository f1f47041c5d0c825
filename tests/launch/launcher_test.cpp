// The launcher against ranks that end in every way there is. The ranks are real processes of this program (launcher_programs.cpp).
#include "launch/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/descriptor.h"
#include "launch/rank_programs.h"
#include "launch/spawn.h"

namespace baleen {
namespace {

using ::testing::HasSubstr;
using testing::open_descriptors;
using testing::ranks_running;

class Launcher : public ::testing::Test {
 protected:
  void SetUp() override {
    descriptors_ = open_descriptors();
    sigprocmask(SIG_BLOCK, nullptr, &mask_);
  }
  void TearDown() override {
    EXPECT_EQ(open_descriptors(), descriptors_);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a rank is left";
    EXPECT_EQ(errno, ECHILD);
    sigset_t now;
    sigprocmask(SIG_BLOCK, nullptr, &now);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) EXPECT_EQ(sigismember(&now, signal), sigismember(&mask_, signal));
  }

 private:
  std::size_t descriptors_ = 0;
  sigset_t mask_{};
};

TEST_F(Launcher, RanksGetWhatTheyArePromised) {
  LaunchOptions options = ranks_running("check_environment", 3);
  options.threads = 7;
  options.environment["BALEEN_TEST_WORD"] = "whale";
  options.environment["BALEEN_TEST_DESCRIPTORS"] = std::to_string(testing::inherited_descriptors());
  std::vector<pid_t> pids;
  options.started = [&](const std::vector<pid_t>& started) { pids = started; };
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.message;
  EXPECT_EQ(outcome.message, "");
  EXPECT_EQ(pids.size(), 3u);
}

TEST_F(Launcher, AKilledRankIsNamedWithItsSignal) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("die_by_signal", 4));
  EXPECT_EQ(outcome.exit_code, 4);
  // To the end of the message: none of the others had to be killed, the abort flag has reached them.
  EXPECT_EQ(outcome.message, "rank 2 was killed by SIGKILL (the out-of-memory killer or a person)");
}

TEST_F(Launcher, ARankThatReportsAPeerIsNotTheOneThatFailed) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("fail_second", 3));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.message, "rank 1 failed with exit code 3");
}

TEST_F(Launcher, AStoppedRankIsKilledAfterTheGrace) {
  LaunchOptions options = ranks_running("stopped_dead", 2);
  options.grace = std::chrono::milliseconds(200);
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.message, HasSubstr("rank 0 waited for rank 1"));
  EXPECT_THAT(outcome.message, HasSubstr("killed because it did not end in time: rank 1"));
}

TEST_F(Launcher, AnUnknownExitCodeBecomesFour) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("odd_code", 2));
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.message, HasSubstr("rank 1 failed with exit code 77"));
}

class LauncherStop : public Launcher, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, LauncherStop, ::testing::Values(SIGTERM, SIGINT, SIGUSR1));

TEST_P(LauncherStop, IsPassedOnAsSigterm) {
  LaunchOptions options = ranks_running("until_stopped", 3);
  options.environment["BALEEN_TEST_SIGNAL"] = std::to_string(GetParam());
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 75) << outcome.message;
  EXPECT_EQ(outcome.message, std::string("stopped by SIG") + sigabbrev_np(GetParam()));
}

TEST_F(Launcher, ARequestBeforeTheRankIsReadyIsKept) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("late_handler", 2));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.message;
}

TEST_F(Launcher, SomeDoneAndSomeStoppedMeansRunAgain) {
  EXPECT_EQ(launch_ranks(ranks_running("half_done", 3)).exit_code, 75);
}

TEST_F(Launcher, ASecondRequestKills) {
  const LaunchOutcome outcome = launch_ranks(ranks_running("stubborn", 2));
  EXPECT_EQ(outcome.exit_code, 128 + SIGINT);
  EXPECT_THAT(outcome.message, HasSubstr("without saving"));
}

TEST_F(Launcher, RanksThatCannotSaveAreKilledByTheFirstRequest) {
  LaunchOptions options = ranks_running("hang", 2);
  options.graceful_stop = false;
  options.started = [](const std::vector<pid_t>&) { kill(getpid(), SIGTERM); };
  const LaunchOutcome outcome = launch_ranks(options);
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);  // not 75, which says that there is a checkpoint
  EXPECT_THAT(outcome.message, HasSubstr("SIGTERM without saving"));
}

TEST_F(Launcher, RanksDieWithTheirLauncher) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);
  SpawnRequest request;
  request.executable = own_executable();
  request.arguments = {"nested-launcher", "--as-rank", "nested_launcher"};
  request.environment["BALEEN_TEST_PIPE"] = std::to_string(ends[1]);
  request.inherited_descriptors = {ends[1]};
  const pid_t launcher = spawn(request);
  write_end.reset();
  char ready = 0;
  ASSERT_EQ(read(read_end.get(), &ready, 1), 1);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  pollfd entry{read_end.get(), POLLIN, 0};
  ASSERT_EQ(poll(&entry, 1, 20'000), 1) << "a rank still holds the pipe";
  EXPECT_EQ(read(read_end.get(), &ready, 1), 0);  // the end of the file: nobody can write any more
}

TEST_F(Launcher, AProgramThatCannotBeStartedIsAnError) {
  SpawnRequest request;
  request.executable = "/nonexistent/program";
  request.arguments = {"program"};
  try {
    spawn(request);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::rank_failed);
    EXPECT_THAT(error.what(), HasSubstr("No such file or directory"));
  }
}

}  // namespace
}  // namespace baleen
