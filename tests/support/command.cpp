#include "support/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "support/paths.h"

namespace baleen::testing {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "baleen-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Command::Command(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string out = folder_ / "out", error = folder_ / "error";
  pid_ = fork();
  if (pid_ != 0) return;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no program behind
  const auto redirect = [](const char* path, int to, int flags) {
    const int file = open(path, flags, 0600);
    if (file < 0 || dup2(file, to) < 0) _exit(126);
    close(file);
  };
  redirect("/dev/null", STDIN_FILENO, O_RDONLY);
  redirect(out.c_str(), STDOUT_FILENO, O_WRONLY | O_CREAT);
  redirect(error.c_str(), STDERR_FILENO, O_WRONLY | O_CREAT);
  setenv("TMPDIR", folder_.path().c_str(), 1);  // two mpiruns that share one remove each other's session directory
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  execvp(argv[0], argv.data());
  _exit(127);
}

Command::~Command() {
  if (reaped_) return;
  kill(-pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Command::signal(int number) const {
  kill(pid_, number);
}

bool Command::running() {
  if (!reaped_ && waitpid(pid_, &status_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

std::string Command::errors_so_far() const {
  return read_text(folder_ / "error");
}

std::vector<pid_t> Command::children() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
  std::vector<pid_t> found;
  for (pid_t child; file >> child;) found.push_back(child);
  return found;
}

CommandResult Command::wait(std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (running() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (!reaped_) {
    ADD_FAILURE() << "the program did not end within " << limit.count() << " s";
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status_, 0);
    reaped_ = true;
  }
  CommandResult result;
  if (WIFEXITED(status_)) result.exit_code = WEXITSTATUS(status_);
  if (WIFSIGNALED(status_)) result.signal = WTERMSIG(status_);
  result.out = read_text(folder_ / "out");
  result.error = read_text(folder_ / "error");
  return result;
}

CommandResult run_command(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment) {
  return Command(arguments, environment).wait();
}

std::vector<std::string> baleen_arguments(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), baleen_binary());
  return arguments;
}

CommandResult run_baleen(std::vector<std::string> arguments) {
  return run_command(baleen_arguments(std::move(arguments)));
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
}

}  // namespace baleen::testing
