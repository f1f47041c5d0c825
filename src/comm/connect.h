// From "which rank am I" to a world that can communicate.
#pragma once

#include <chrono>
#include <memory>

#include "comm/communicator.h"
#include "launch/rank_environment.h"

namespace baleen {

// The built-in backend's world of this process: over the shared memory inherited from baleen's launcher, over memory that rank 0 hands
// out where torchrun, mpirun or srun started the ranks, or over memory of its own for a single rank. Call it once a process.
// Throws Error(bad_config) when not all ranks are on this machine, Error(rank_failed) when some do not come within `timeout`, which also
// bounds every later wait for another rank.
std::unique_ptr<World> connect_world(const RankEnvironment& environment, std::chrono::milliseconds timeout);

}  // namespace baleen
