// Dispatches a command, and turns an Error into a message and an exit code.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <variant>
#include <vector>

#include "base/error.h"
#include "cli/commands.h"
#include "device/gpu.h"
#include "launch/rank_environment.h"

namespace {

using baleen::Error;
using baleen::ExitCode;

int fail(ExitCode code, const char* message) {
  std::fprintf(stderr, "baleen: %s\n", message);
  return static_cast<int>(code);
}

// Of a rank that our own launcher started the message names it; where it ends only because another one failed, one line is enough: the
// launcher has the last word and names the first to fail.
int fail(const Error& error) {
  const char* rank = std::getenv(baleen::rank_variable);
  if (rank == nullptr) return fail(error.code(), error.what());
  if (error.code() == ExitCode::rank_failed)
    std::fprintf(stderr, "baleen, rank %s ends: %s%s\n", rank, error.what_is_wrong().c_str(),
                 error.where().empty() ? "" : (" (" + error.where() + ")").c_str());
  else
    std::fprintf(stderr, "baleen, rank %s: %s\n", rank, error.what());
  return static_cast<int>(error.code());
}

// Every token file of a run stays open, on every rank.
void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// What is opened next would else take the place of a closed one of these, and get what is printed.
void open_standard_files() {
  for (int file = 0; file <= 2; ++file)
    if (fcntl(file, F_GETFD) < 0 && open("/dev/null", file == 0 ? O_RDONLY : O_WRONLY) < 0) _exit(static_cast<int>(ExitCode::bad_data));
}

int dispatch(const baleen::cli::Arguments& arguments, const std::vector<std::string>& command_line) {
  return std::visit(
      [&](const auto& chosen) -> int {
        using Chosen = std::decay_t<decltype(chosen)>;
        if constexpr (std::is_same_v<Chosen, std::monostate>)
          return static_cast<int>(ExitCode::bad_config);
        else if constexpr (requires { baleen::cli::run(chosen, command_line); })
          return baleen::cli::run(chosen, command_line);
        else
          return baleen::cli::run(chosen);
      },
      arguments);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_files();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that would pass `ulimit -f` is a failed write, which has a message
  allow_many_files();
  baleen::prepare_gpus();
  try {
    const auto parsed = baleen::cli::parse_command_line(argc, argv);
    if (parsed.exit_code >= 0) return parsed.exit_code;
    const int code = dispatch(parsed.arguments, std::vector<std::string>(argv, argv + argc));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return fail(ExitCode::bad_data,
                  "standard output cannot be written\n  what to do: give it a file or a pipe that takes what is printed, and room");
    return code;
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::out_of_memory, "out of memory on the host\n  what to do: use a smaller micro_batch_size, or more ranks");
  } catch (const std::filesystem::filesystem_error& error) {
    return fail(
        Error(ExitCode::bad_data, error.code().message(), error.path1().string(), "check the path, its length and the permissions on it"));
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return fail(ExitCode::check_failed, error.what());
    return fail(
        ExitCode::out_of_memory,
        "the system starts no more threads for this user\n  what to do: raise its limit (ulimit -u, or pids.max of the control group), or "
        "take fewer ranks or training.threads");
  } catch (const std::exception& error) {
    return fail(ExitCode::check_failed, error.what());
  }
}
