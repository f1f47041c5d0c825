#include "checkpoint/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/writer.h"

namespace baleen::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* unwritable_remedy = "check the permissions and the free space there, or write to another directory with --out";

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// "process 4711 on node3", as the holder wrote it.
std::string read_holder(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  std::string holder(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!holder.empty() && holder.back() == '\n') holder.pop_back();
  return holder.empty() ? "another process" : holder;
}

}  // namespace

RunDirectoryLock::RunDirectoryLock(const fs::path& run) {
  std::error_code error;
  fs::create_directories(run, error);
  if (error) throw Error(ExitCode::bad_data, "cannot create the run directory: " + error.message(), run.string(), unwritable_remedy);
  const fs::path path = run / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0)
    throw Error(ExitCode::bad_data, fmt::format("cannot write in the run directory: {}", std::strerror(errno)), path.string(),
                unwritable_remedy);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
    held_ = true;
    const std::string holder = fmt::format("process {} on {}\n", ::getpid(), host_name());
    // Only for the other job's message: a disk too full for it shows itself in probe_writable.
    if (::ftruncate(descriptor_, 0) == 0) static_cast<void>(::pwrite(descriptor_, holder.data(), holder.size(), 0) < 0);
    return;
  }
  const int reason = errno;
  const std::string holder = read_holder(descriptor_);
  if (reason == ENOSYS || reason == EOPNOTSUPP || reason == ENOLCK) return;
  ::close(descriptor_);
  if (reason == EWOULDBLOCK)
    throw Error(ExitCode::bad_config, fmt::format("the run directory is in use by {}", holder), path.string(),
                "wait for that job or stop it, or give this one another directory with --out");
  throw Error(ExitCode::bad_data, fmt::format("cannot lock the run directory: {}", std::strerror(reason)), path.string(),
              unwritable_remedy);
}

RunDirectoryLock::~RunDirectoryLock() {
  ::close(descriptor_);
}

void probe_writable(const fs::path& directory, std::uint64_t needed_bytes) {
  const fs::path path = directory / fmt::format(".probe-{}", ::getpid());
  constexpr std::size_t probe_bytes = 65536;
  const std::vector<char> zeros(probe_bytes);
  try {
    FileWriter writer(path);
    writer.write(zeros.data(), zeros.size());
    writer.sync_and_close();
  } catch (const Error&) {
    ::unlink(path.c_str());
    throw;
  }
  if (::unlink(path.c_str()) != 0)
    throw Error(ExitCode::bad_data, fmt::format("cannot remove a file: {}", std::strerror(errno)), path.string(), unwritable_remedy);
  require_free_space(directory, needed_bytes);
}

}  // namespace baleen::checkpoint
