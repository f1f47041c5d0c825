// Full and unwritable disks, and run directories that are in use.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/reader.h"
#include "checkpoint/run_directory.h"
#include "checkpoint/support.h"

namespace baleen::checkpoint::testing {
namespace {

namespace fs = std::filesystem;

// Files of this process cannot grow past `bytes` meanwhile: a write then fails as on a full disk, half-way.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit before_{};
  sighandler_t handler_ = SIG_DFL;
};

// Runs `body` in a child with a file system of `bytes` mounted on `directory`, which only the child sees and which goes with it.
// Returns false when this process may not mount.
bool with_small_disk(const fs::path& directory, std::size_t bytes, const std::function<void()>& body) {
  constexpr int not_allowed = 77;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string options = "size=" + std::to_string(bytes);
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory.c_str(), "tmpfs", 0, options.c_str()) != 0)
      ::_exit(not_allowed);
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == not_allowed) return false;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child's failures stand above";
  return true;
}

TEST(CheckpointDisk, AWriteThatFailsHalfWayLeavesTheFormerCheckpointAndNoFile) {
  const TemporaryDirectory run;
  save(run.path(), {1, 1}, 1);
  const auto incomplete = begin_checkpoint(run.path(), 2, 0);
  const RankState state = rank_state({1, 1}, 0, 2);
  {
    const FileSizeLimit limit(10'000);  // enough for model_…, not for optimizer_…
    expect_error([&] { write_rank_files(incomplete, 0, 1, 2, state.pieces); }, ExitCode::bad_data,
                 {"File too large", "optimizer_00000-of-00001.safetensors"});
  }
  EXPECT_TRUE(fs::is_empty(incomplete));
  EXPECT_EQ(latest_checkpoint(run.path()).checkpoint->step, 1);
  save(run.path(), {1, 1}, 2);
  EXPECT_EQ(latest_checkpoint(run.path()).checkpoint->step, 2);
}

TEST(CheckpointDisk, AFullDisk) {
  const TemporaryDirectory run;
  const bool ran = with_small_disk(run.path(), 1 << 20, [&] {
    save(run.path(), {1, 1}, 1);
    const auto incomplete = begin_checkpoint(run.path(), 2, 0);
    auto records = write_all_ranks(incomplete, {1, 1}, 2);
    // Now someone else fills the disk.
    std::size_t filled = 0;
    try {
      FileWriter filler(run.path() / "filler");
      const std::string block(4096, 'x');
      for (;; filled += block.size()) filler.write(block);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("No space left"), std::string::npos);
    }
    EXPECT_GT(filled, 0u);
    expect_error([&] { commit_checkpoint(incomplete, 2, 1, "{}", std::move(records)); }, ExitCode::bad_data,
                 {"No space left", "manifest.json", "free some space"});
    EXPECT_EQ(latest_checkpoint(run.path()).checkpoint->step, 1);
    expect_content(latest_checkpoint(run.path()).checkpoint->directory, {1, 1}, 1);
    expect_error([&] { probe_writable(run.path()); }, ExitCode::bad_data, {"No space left", run.path().string()});
    EXPECT_EQ(std::distance(fs::directory_iterator(run.path()), {}), 2);  // checkpoints, filler: no probe is left
    fs::remove(run.path() / "filler");
    probe_writable(run.path());
    save(run.path(), {1, 1}, 2);
    expect_content(latest_checkpoint(run.path()).checkpoint->directory, {1, 1}, 2);
  });
  if (!ran) GTEST_SKIP() << "this process may not mount a small file system";
}

TEST(CheckpointDisk, TooLittleSpaceIsSaidBeforeWriting) {
  const TemporaryDirectory run;
  const std::uint64_t petabyte = std::uint64_t{1} << 50;
  const std::vector<std::string> words{"not enough disk space", std::to_string(petabyte), run.path().string(), "by hand", "--out"};
  expect_error([&] { begin_checkpoint(run.path(), 1, petabyte); }, ExitCode::bad_data, words);
  expect_error([&] { probe_writable(run.path(), petabyte); }, ExitCode::bad_data, words);
  // Memory that nobody may look at: the check must come first.
  const auto incomplete = begin_checkpoint(run.path(), 1, 0);
  const Shape shape{std::int64_t{1} << 48};
  const Piece piece{{"huge", StateKind::weight, shape, Box::whole(shape), 0, shape[0]}, DType::f32, nullptr};
  expect_error([&] { write_rank_files(incomplete, 0, 1, 1, {&piece, 1}); }, ExitCode::bad_data, {"not enough disk space"});
  EXPECT_TRUE(fs::is_empty(incomplete));
}

TEST(CheckpointDisk, AFileThatRankZeroCannotSee) {
  const TemporaryDirectory run;
  const auto incomplete = begin_checkpoint(run.path(), 1, 0);
  auto records = write_all_ranks(incomplete, {2, 1}, 1);
  fs::remove(incomplete / records[2].name);
  expect_error([&] { commit_checkpoint(incomplete, 1, 2, "{}", records); }, ExitCode::bad_data, {records[2].name, "share"});
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
}

TEST(RunDirectory, BelongsToOneProcess) {
  const TemporaryDirectory parent;
  const fs::path run = parent.path() / "a" / "run";
  {
    const RunDirectoryLock lock(run);
    EXPECT_TRUE(lock.held());
    expect_error([&] { const RunDirectoryLock second(run); }, ExitCode::bad_config,
                 {"in use by process " + std::to_string(::getpid()) + " on ", (run / ".lock").string(), "--out"});
  }
  const RunDirectoryLock again(run);
  EXPECT_TRUE(again.held());
}

TEST(RunDirectory, ADeadProcessHoldsNothing) {
  const TemporaryDirectory run;
  const pid_t pid = ::fork();
  if (pid == 0) {
    const RunDirectoryLock lock(run.path());
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_TRUE(fs::exists(run.path() / ".lock"));
  const RunDirectoryLock lock(run.path());
  EXPECT_TRUE(lock.held());
}

TEST(RunDirectory, CannotBeMadeOrWritten) {
  const TemporaryDirectory parent;
  write_text(parent.path() / "file", "");
  expect_error([&] { const RunDirectoryLock lock(parent.path() / "file"); }, ExitCode::bad_data, {"run directory", "file"});
  expect_error([&] { const RunDirectoryLock lock(parent.path() / "file" / "run"); }, ExitCode::bad_data,
               {"cannot create the run directory"});
  expect_error([&] { const RunDirectoryLock lock("/proc/baleen-run"); }, ExitCode::bad_data, {"/proc/baleen-run"});
  expect_error([&] { probe_writable(parent.path() / "nowhere"); }, ExitCode::bad_data, {"nowhere"});
  probe_writable(parent.path());
  EXPECT_EQ(std::distance(fs::directory_iterator(parent.path()), {}), 1);
}

}  // namespace
}  // namespace baleen::checkpoint::testing
