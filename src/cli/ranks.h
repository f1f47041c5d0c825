// Running a command's body on every rank of a job, whoever starts the ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "launch/binding.h"
#include "launch/rank_environment.h"

namespace baleen::cli {

struct RankedCommand {
  int ranks = 1;
  int threads = 0;  // OpenMP threads a rank; 0: cores / ranks
  double timeout_s = 60;
  bool graceful_stop = false;    // the body honours a stop signal
  std::string backend = "auto";  // of [comm]
  bool gpu = false;              // the body computes on a GPU, rank r on number r modulo the GPUs
  // The body reports its progress: who makes none for timeout_s hangs. Restarts are as in LaunchOptions.
  bool reports_progress = false;
  int max_restarts = 0;
  std::function<std::int64_t()> latest_checkpoint = {};
  bool peer_copies = true;                        // of [comm]
  std::string backend_key = "[comm] backend = ";  // what the backend is set with, for messages; empty: it cannot be set
};

// The number of ranks: torchrun's or mpirun's world size, else `given`, else `fallback`. Throws Error(bad_config) when --ranks is given
// and another launcher has started the ranks.
int rank_count(const RankEnvironment& environment, int given, int fallback);

// "torchrun" or another launcher that has fixed the number of ranks; empty where --ranks does.
std::string other_launcher(const RankEnvironment& environment);

// What the ranks of this machine keep to: launch/binding.h for such a command.
BindingRequest binding_request(const RankEnvironment& environment, int local_ranks, int threads, bool gpu);

// In a rank, or for a job of one rank: keeps to its cores, connects the world and runs `body`. Otherwise starts the ranks with
// `command_line` and watches over them. Returns the exit code. Throws Error(bad_config), before any rank starts, for a backend that such
// ranks cannot have and for more of them than the built-in one connects.
int run_on_ranks(const RankEnvironment& environment, const RankedCommand& command, const std::vector<std::string>& command_line,
                 const std::function<int(World&)>& body);

}  // namespace baleen::cli
