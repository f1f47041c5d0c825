// Where ranks on several machines find each other: rank 0 listens on a TCP port, lets in only the ranks of its own job (handshake.h), and
// gives everybody a few bytes of each: addresses, an NCCL id.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/rank_environment.h"

namespace baleen {

struct TcpMeeting {
  std::string address;  // rank 0's: a name or a number; what it binds to
  std::uint16_t port = 0;
  int rank = 0, size = 1;
  std::string job, build;             // must be the same everywhere; see build_identity()
  std::optional<std::string> secret;  // may be missing on the loopback address only
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::chrono::milliseconds patience = std::chrono::seconds(5);  // with a peer that has not proved itself
};

// From MASTER_ADDR and MASTER_PORT, which torchrun sets and a Slurm script can (BALEEN_PORT names another port; where torchrun's own store
// holds MASTER_PORT the next one is taken), and the job's secret. Throws Error(bad_config) naming what is missing.
TcpMeeting meeting_of(const RankEnvironment& environment, std::chrono::milliseconds timeout);

// Collective over the ranks: every rank's payload (at most largest_payload bytes), by rank. Rank 0 turns away whoever is not of the job and
// logs who and why; strangers, however many, delay nobody and hold a bounded amount of memory.
// Throws Error(rank_failed) naming the ranks that did not come within the timeout, or why rank 0 could not be reached; Error(bad_config)
// where the address needs a secret, the port is taken, or this rank is refused for its job, version, world size or rank.
std::vector<std::string> meet(const TcpMeeting& meeting, const std::string& payload);

// Version and checksum of this executable.
std::string build_identity();

}  // namespace baleen
