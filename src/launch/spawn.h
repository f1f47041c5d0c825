// Starts one rank as a child process of this one.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

namespace baleen {

struct SpawnRequest {
  std::string executable;                          // a path
  std::vector<std::string> arguments;              // argv, [0] included
  std::map<std::string, std::string> environment;  // laid over this process's own
  std::vector<int> inherited_descriptors;          // open in the child although they are close-on-exec here
  sigset_t signal_mask{};                          // what the child has blocked when it starts
};

// fork and exec at once: nothing of this process's libraries runs in the child. The child stays in this process's session and process
// group and is killed when the calling *thread* ends (PR_SET_PDEATHSIG). Throws Error(rank_failed) when it cannot be started.
pid_t spawn(const SpawnRequest& request);

// The path of the running program, for ranks of the same program.
std::string own_executable();

}  // namespace baleen
