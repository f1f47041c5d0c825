// Dispatches a command, and turns an Error into a message and an exit code.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
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
    std::fprintf(stderr, "baleen, rank %s ends: %s (%s)\n", rank, error.what_is_wrong().c_str(), error.where().c_str());
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
  allow_many_files();
  baleen::prepare_gpus();
  try {
    const auto parsed = baleen::cli::parse_command_line(argc, argv);
    if (parsed.exit_code >= 0) return parsed.exit_code;
    return dispatch(parsed.arguments, std::vector<std::string>(argv, argv + argc));
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::out_of_memory, "out of memory on the host\n  what to do: use a smaller micro_batch_size, or more ranks");
  } catch (const std::exception& error) {
    return fail(ExitCode::check_failed, error.what());
  }
}
