// Runs programs as a user does: arguments, exit code, what they print. Nothing a test starts outlives it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace baleen::testing {

// A fresh directory under the system's temporary one, removed with what it holds.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

struct CommandResult {
  int exit_code = -1;  // -1: killed by `signal`
  int signal = 0;
  std::string out, error;
};

// A running program in a process group of its own. The destructor kills what is left of the group.
class Command {
 public:
  explicit Command(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment = {});
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  bool running();
  // What it has printed to standard error so far.
  std::string errors_so_far() const;
  // The program's direct children.
  std::vector<pid_t> children() const;
  // Waits for the end; a program that takes longer than `limit` is killed and the test fails.
  CommandResult wait(std::chrono::seconds limit = std::chrono::seconds(120));

 private:
  TemporaryFolder folder_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  int status_ = 0;
};

CommandResult run_command(const std::vector<std::string>& arguments, const std::map<std::string, std::string>& environment = {});
// The program under test with these arguments.
CommandResult run_baleen(std::vector<std::string> arguments);
std::vector<std::string> baleen_arguments(std::vector<std::string> arguments);

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace baleen::testing
