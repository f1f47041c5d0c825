#include "launch/spawn.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/descriptor.h"
#include "base/error.h"

namespace baleen {
namespace {

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& overlay) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!overlay.contains(text.substr(0, text.find('=')))) entries.push_back(text);
  }
  for (const auto& [name, value] : overlay) entries.push_back(name + "=" + value);
  return entries;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& string : strings) out.push_back(const_cast<char*>(string.c_str()));
  out.push_back(nullptr);
  return out;
}

// Runs in the child, between fork and exec: async-signal-safe calls only. Reports errno through `report` when it cannot go on.
[[noreturn]] void become_rank(const SpawnRequest& request, char** arguments, char** environment, pid_t launcher, int report) {
  // The launcher may have died before prctl took effect: then the parent is no longer it.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() != launcher) _exit(4);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
    struct sigaction now{};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == SIG_IGN) continue;  // stays ignored over exec, as for any command
    now.sa_handler = SIG_DFL;
    now.sa_flags = 0;
    sigaction(signal, &now, nullptr);
  }
  bool ready = sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr) == 0;
  for (const int descriptor : request.inherited_descriptors) ready = ready && fcntl(descriptor, F_SETFD, 0) == 0;
  if (ready) execve(request.executable.c_str(), arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof error);
  _exit(4);
}

}  // namespace

pid_t spawn(const SpawnRequest& request) {
  const auto environment = merged_environment(request.environment);
  const auto argument_pointers = pointers(request.arguments), environment_pointers = pointers(environment);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error(ExitCode::rank_failed, std::string("cannot start a rank: ") + std::strerror(errno), request.executable,
                "raise the limits on open files and processes (ulimit -n, -u), or start fewer ranks");
  const Descriptor read_end(ends[0]);
  Descriptor write_end(ends[1]);

  const pid_t launcher = getpid();
  const pid_t child = fork();
  if (child == 0)
    become_rank(request, const_cast<char**>(argument_pointers.data()), const_cast<char**>(environment_pointers.data()), launcher, ends[1]);
  int error = errno;
  write_end.reset();
  if (child > 0) {
    ssize_t got = 0;
    do got = read(read_end.get(), &error, sizeof error);
    while (got < 0 && errno == EINTR);
    if (got == 0) return child;  // closed by exec
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  throw Error(ExitCode::rank_failed, std::string("cannot start a rank: ") + std::strerror(error), request.executable,
              "check the limit on processes (`ulimit -u`) and that the program can be executed");
}

std::string own_executable() {
  std::string link = "/proc/self/exe";
  std::array<char, 4096> path{};
  const ssize_t length = readlink(link.c_str(), path.data(), path.size() - 1);
  // The path by name reads better in `ps` than "exe"; the link still works when the file was replaced meanwhile.
  struct stat by_name{}, by_link{};
  if (length > 0 && stat(path.data(), &by_name) == 0 && stat(link.c_str(), &by_link) == 0 && by_name.st_ino == by_link.st_ino &&
      by_name.st_dev == by_link.st_dev)
    return path.data();
  return link;
}

}  // namespace baleen
