// Ranks on several machines without MPI: torchrun's environment, or Slurm's, and plain TCP. For processors, and for the host's part of jobs
// whose GPUs talk through NCCL. Not fast: every byte is copied on both ends.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "launch/tcp_rendezvous.h"

namespace baleen {

// Collective over the ranks of the meeting; `timeout` bounds every later wait for another rank: they find each other at rank 0's address,
// then every two of them connect and prove themselves to each other with the job's secret. Throws as meet() does.
std::unique_ptr<World> create_tcp_world(const TcpMeeting& meeting, std::chrono::milliseconds timeout);

}  // namespace baleen
