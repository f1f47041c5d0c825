// `--ranks N`: starts the ranks of a job on this machine, watches over them, and says how the job ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace baleen {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> arguments;              // of every rank, argv[0] included; the program is this one
  std::map<std::string, std::string> environment;  // laid over this process's own
  int threads = 0;                                 // OpenMP threads a rank; 0: the cores this process may use divided by the ranks
  // True when the ranks hold a StopSignal and end by themselves (exit 75) when asked to. False: the first signal kills them.
  bool graceful_stop = true;
  std::chrono::milliseconds grace{10'000};  // between the first failure and the end of everybody
  // How long a rank may be at one action of its ProgressBoard that it called limited, or be stopped by a signal; 0: nobody watches.
  std::chrono::milliseconds progress_timeout{0};
  // How often in a row all ranks are started again after a rank or a link has failed (exit code 4) and nobody asked the job to stop.
  int max_restarts = 0;
  // Asked before and after: where it grows, what was lost is little, and the row begins anew. May be empty.
  std::function<std::int64_t()> latest_checkpoint;
  std::function<void(const std::string&)> restarting;      // told what has failed and what happens now; may be empty
  std::function<void(const std::vector<pid_t>&)> started;  // told the process ids once all run; may be empty
};

struct LaunchOutcome {
  int exit_code = 0;    // for this process: 0, 75, or the failure's own code (docs/operations.md)
  std::string message;  // empty for 0; else which rank and why
};

// Returns once every rank is gone and reaped, for the last time where they are restarted. Failure of one rank raises the job's abort flag,
// so that the others end with exit 4 by themselves; whoever has not after the grace is killed. A rank that hangs is killed at once.
// SIGTERM, SIGINT and SIGUSR1 are passed on once, as SIGTERM; a second SIGTERM or SIGINT (a second or more later, because a terminal or
// `timeout` may deliver one request twice) kills the ranks. Call it before this process has other threads: they would take the signals
// instead. Throws Error when a rank cannot be started.
LaunchOutcome launch_ranks(const LaunchOptions& options);

// Cores this process may run on.
int available_cores();
// The same of another process; 0 where the system does not tell.
int available_cores(int process);

}  // namespace baleen
