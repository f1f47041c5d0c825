// From "which rank am I" to a world that can communicate.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "launch/rank_environment.h"

namespace baleen {

// Which engine carries the ranks' communication: "shm", "mpi" or "tcp" where `asked` (of [comm] backend) says so, else, for "auto", shared
// memory where all ranks are on this machine, MPI where mpirun started them on several, and TCP where torchrun or srun did. Also the host's
// half of "nccl", whose communicators for GPUs are made in a world of one of these.
// Throws Error(bad_config) when that engine cannot connect these ranks, with the launcher that could.
std::string choose_backend(const RankEnvironment& environment, const std::string& asked);

// This process's world. Shared memory is inherited from baleen's launcher, handed out by rank 0 where torchrun, mpirun or srun started the
// ranks, or this process's own for a single rank. Call it once a process.
// Throws Error(bad_config) as choose_backend does, Error(rank_failed) when ranks do not come within `timeout`, which also bounds every
// later wait for another rank.
std::unique_ptr<World> connect_world(const RankEnvironment& environment, std::chrono::milliseconds timeout,
                                     const std::string& asked = "auto");

}  // namespace baleen
