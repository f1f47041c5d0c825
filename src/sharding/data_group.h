// The communicators of data parallelism, as one rank sees them.
#pragma once

#include "comm/communicator.h"

namespace baleen {

// Owns nothing. Gathers of weights and reductions of gradients have communicators of their own, so that neither waits in the other's queue.
struct DataGroup {
  // All ranks that share the global batch: replicate × data.
  Communicator& batch;
  // The ranks among which states are sharded (axis dp), twice.
  Communicator& reduce;
  Communicator& gather;
  // The ranks that hold the same shard (axis replicate); nullptr where there is only one.
  Communicator* replicas = nullptr;

  DataGroup(Communicator& batch_, Communicator& reduce_, Communicator& gather_, Communicator* replicas_)
      : batch(batch_), reduce(reduce_), gather(gather_), replicas(replicas_) {}
  // Everything over one communicator.
  DataGroup(Communicator& axis) : DataGroup(axis, axis, axis, nullptr) {}  // NOLINT
};

}  // namespace baleen
