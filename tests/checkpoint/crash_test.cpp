// A save killed anywhere leaves the old set of checkpoints or the new one, and the next save works.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "checkpoint/reader.h"
#include "checkpoint/support.h"

namespace baleen::checkpoint::testing {
namespace {

namespace fs = std::filesystem;

const Layout writers{2, 1};

fs::path save_tiny(const fs::path& run, std::int64_t step) {
  return save(run, writers, step, DType::f32, tiny_model());
}

// A child process that runs `action` and leaves with 0, or 1 when it throws. It is killed and reaped when the handle goes.
class Child {
 public:
  Child(const std::function<void()>& action, bool traced) : pid_(::fork()) {
    if (pid_ != 0) return;
    if (traced && ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    if (traced) ::raise(SIGSTOP);  // until the parent watches
    try {
      action();
      ::_exit(0);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  ~Child() { kill_and_reap(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // Waits for the next change; sets `ended` when there will be no other.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) || WIFSIGNALED(status)) pid_ = -1;
    return status;
  }
  void kill_and_reap() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (pid_ > 0) wait();
  }

 private:
  pid_t pid_;
};

// Every checkpoint readers would take must be whole and hold its own step's values. Returns their steps.
std::vector<std::int64_t> sound_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(run)) {
    expect_content(entry.directory, {1, 1}, entry.step, DType::f32, tiny_model());
    EXPECT_EQ(CheckpointReader(entry.directory).verify(), std::vector<std::string>());
    steps.push_back(entry.step);
  }
  EXPECT_TRUE(latest_checkpoint(run).warnings.empty());
  return steps;
}

// Everything in the folder of checkpoints is a checkpoint: nothing is left of interrupted saves.
void expect_clean(const fs::path& run) {
  for (const auto& entry : fs::directory_iterator(checkpoints_folder(run)))
    EXPECT_TRUE(step_of_name(entry.path().filename().string()).has_value()) << entry.path();
}

// Runs `action` in a child that is killed at its `moment`-th system call; true when it got to its end before.
// A kill between two system calls leaves the files as a kill at the next one does, so that these are all the moments there are.
bool killed_at_system_call(const std::function<void()>& action, int moment, bool& traceable) {
  Child child(action, true);
  const int first = child.wait();
  traceable = WIFSTOPPED(first);
  if (!traceable) return true;
  for (int call = 0; call < moment; ++call) {
    // Stops come in pairs, before and after each call.
    for (int half = 0; half < (call + 1 < moment ? 2 : 1); ++half) {
      if (::ptrace(PTRACE_SYSCALL, child.pid(), nullptr, nullptr) != 0) return true;
      const int status = child.wait();
      if (WIFEXITED(status)) {
        EXPECT_EQ(WEXITSTATUS(status), 0);
        return true;
      }
    }
  }
  child.kill_and_reap();
  return false;
}

// A run with these checkpoints, each written by two ranks.
void copy_checkpoints(const fs::path& from, const fs::path& to) {
  fs::copy(checkpoints_folder(from), checkpoints_folder(to), fs::copy_options::recursive);
}

TEST(CheckpointCrash, AKillAtEverySystemCallOfASave) {
  const RankState state[2] = {rank_state(writers, 0, 3, DType::f32, tiny_model()), rank_state(writers, 1, 3, DType::f32, tiny_model())};
  const TemporaryDirectory before;
  save_tiny(before.path(), 1);
  save_tiny(before.path(), 2);
  fs::create_directories(checkpoints_folder(before.path()) / "step_00000009.incomplete");  // of an earlier kill
  int moments = 0;
  for (bool finished = false; !finished; ++moments) {
    ASSERT_LT(moments, 5000);
    const TemporaryDirectory run;
    copy_checkpoints(before.path(), run.path());
    const auto action = [&] {
      const auto incomplete = begin_checkpoint(run.path(), 3, 0);
      std::vector<FileRecord> records;
      for (int rank = 0; rank < 2; ++rank)
        for (FileRecord& record : write_rank_files(incomplete, rank, 2, 3, state[rank].pieces)) records.push_back(std::move(record));
      commit_checkpoint(incomplete, 3, 2, "{\"step\":3}", std::move(records));
      prune_checkpoints(run.path(), 2);
    };
    bool traceable = true;
    finished = killed_at_system_call(action, moments, traceable);
    if (!traceable) GTEST_SKIP() << "processes may not be traced here";
    using Steps = std::vector<std::int64_t>;
    const Steps steps = sound_steps(run.path());
    ASSERT_TRUE(steps == (finished ? Steps{2, 3} : Steps{1, 2}) || (!finished && (steps == Steps{1, 2, 3} || steps == Steps{2, 3})))
        << "moment " << moments << ": " << ::testing::PrintToString(steps);
    clean_checkpoints_folder(run.path());
    expect_clean(run.path());
    EXPECT_EQ(list_checkpoints(run.path()).size(), steps.size());
  }
  EXPECT_GT(moments, 60);
}

// Step 2 is saved again with other content.
class CheckpointReplacement : public ::testing::TestWithParam<Exchange> {};
INSTANTIATE_TEST_SUITE_P(, CheckpointReplacement, ::testing::Values(Exchange::where_possible, Exchange::never),
                         [](const auto& exchange) { return exchange.param == Exchange::never ? "ByTwoRenames" : "ByExchange"; });

TEST_P(CheckpointReplacement, AKillAtEverySystemCall) {
  const TemporaryDirectory before, other;
  save_tiny(before.path(), 1);
  const fs::path former = save_tiny(before.path(), 2);
  {
    const auto incomplete = begin_checkpoint(other.path(), 2, 0);
    commit_checkpoint(incomplete, 2, 2, "{\"new\":true}", write_all_ranks(incomplete, writers, 20, DType::f32, tiny_model()));
  }
  fs::rename(checkpoints_folder(other.path()) / "step_00000002", former.string() + ".incomplete");
  const auto content_of = [](const fs::path& run) {
    // The training state and a value: of the former content 2, of the new one 20, or else a mixture.
    const LatestCheckpoint latest = latest_checkpoint(run);
    CheckpointReader reader(latest.checkpoint.value().directory);
    EXPECT_EQ(reader.verify(), std::vector<std::string>());
    EXPECT_EQ(reader.step(), 2);
    float value = 0;
    reader.read("model.scale", StateKind::weight, {}, 0, 1, &value);
    const std::int64_t content = reader.training() == "{\"new\":true}" ? 20 : 2;
    EXPECT_EQ(value, expected_value("model.scale", StateKind::weight, 0, content));
    return content;
  };
  int moments = 0, kept = 0;
  for (bool finished = false; !finished; ++moments) {
    ASSERT_LT(moments, 5000);
    const TemporaryDirectory run;
    copy_checkpoints(before.path(), run.path());
    bool traceable = true;
    finished = killed_at_system_call([&] { publish_checkpoint(checkpoints_folder(run.path()) / "step_00000002.incomplete", GetParam()); },
                                     moments, traceable);
    if (!traceable) GTEST_SKIP() << "processes may not be traced here";
    SCOPED_TRACE(moments);
    const std::int64_t content = content_of(run.path());
    kept += content == 2 ? 1 : 0;
    if (finished) {
      EXPECT_EQ(content, 20);
      expect_clean(run.path());
    }
    clean_checkpoints_folder(run.path());
    expect_clean(run.path());
    EXPECT_EQ(content_of(run.path()), content);
    EXPECT_EQ(list_checkpoints(run.path()).size(), 2u);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(moments, kept + 5);
}

TEST(CheckpointCrash, KillsAtRandomMomentsOfATraining) {
  const TemporaryDirectory run;
  const Philox random(20240607);
  std::int64_t newest = 0;
  std::size_t most = 3;
  for (std::uint64_t round = 0; round < 20; ++round) {
    Child child(
        [&] {
          for (std::int64_t step = newest + 1;; ++step) {
            save_tiny(run.path(), step);
            prune_checkpoints(run.path(), 3);
          }
        },
        false);
    std::this_thread::sleep_for(std::chrono::microseconds(random(round)[0] % 60'000));
    child.kill_and_reap();
    const auto steps = sound_steps(run.path());
    EXPECT_LE(steps.size(), most + 1);  // than are kept, or were left by the round before: pruning comes after the commit
    most = std::max<std::size_t>(3, steps.size());
    if (!steps.empty()) {
      EXPECT_GE(steps.back(), newest);
      newest = steps.back();
    }
  }
  save_tiny(run.path(), newest + 1);
  expect_clean(run.path());
  EXPECT_EQ(sound_steps(run.path()).back(), newest + 1);
}

TEST(CheckpointFolder, PruningKeepsTheNewestAndDiscardingTheOldest) {
  const TemporaryDirectory run;
  for (std::int64_t step = 1; step <= 5; ++step) save_tiny(run.path(), step);
  prune_checkpoints(run.path(), 3);
  EXPECT_EQ(sound_steps(run.path()), (std::vector<std::int64_t>{3, 4, 5}));
  prune_checkpoints(run.path(), 3);
  discard_checkpoints_after(run.path(), 4);
  EXPECT_EQ(sound_steps(run.path()), (std::vector<std::int64_t>{3, 4}));
  expect_clean(run.path());
}

}  // namespace
}  // namespace baleen::checkpoint::testing
