// A connection between every two ranks of a job.
#pragma once

#include <vector>

#include "base/descriptor.h"
#include "launch/tcp_rendezvous.h"

namespace baleen {

// Collective over the ranks. Each listens on the address by which it reaches rank 0, tells the meeting so, and connects to the ranks below
// it; both ends prove that they know the secret and are who they say. Entry r is a non-blocking socket to rank r, the own entry none.
// Throws as meet() does, and Error(rank_failed) naming the ranks that did not connect within the timeout.
std::vector<Descriptor> connect_mesh(const TcpMeeting& meeting);

}  // namespace baleen
