// How ranks that somebody else started (torchrun, mpirun, srun) come to share memory on one machine: rank 0 makes the region and passes its
// descriptor over a local socket in the abstract namespace, which leaves no file behind and which no other machine can reach.
#pragma once

#include <chrono>
#include <memory>

#include "launch/rank_environment.h"
#include "launch/shared_region.h"

namespace baleen {

// Collective over the ranks of `environment`, all on this machine. Both ends check that the other belongs to the same user (SO_PEERCRED).
// Throws Error(rank_failed) naming the ranks that did not come within `timeout`, Error(bad_config) when the ranks disagree on what the job
// is or another job of this user answers to the same name.
std::shared_ptr<SharedRegion> share_region(const RankEnvironment& environment, std::chrono::milliseconds timeout);

}  // namespace baleen
