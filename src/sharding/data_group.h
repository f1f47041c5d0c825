// The communicators that gradients, weights and their sums travel over, as one rank sees them.
#pragma once

#include "comm/communicator.h"

namespace baleen {

// Owns nothing. Gathers of weights and reductions of gradients have communicators of their own, so that neither waits in the other's queue.
struct DataGroup {
  // All ranks that share the global batch: replicate × data × context.
  Communicator& batch;
  // The ranks among which states are sharded (axes dp and cp), twice.
  Communicator& reduce;
  Communicator& gather;
  // The ranks that hold the same shard (axis replicate); nullptr where there is only one.
  Communicator* replicas = nullptr;
  // The ranks of axis tp, and those of them that hold the same KV heads; nullptr where nothing is held twice.
  Communicator* tensor = nullptr;
  Communicator* kv_heads = nullptr;
  // The first and the last pipeline stage's ranks that hold the same part of a tied embedding; nullptr elsewhere.
  Communicator* tied = nullptr;
  // Every rank of the layout.
  Communicator* everyone = nullptr;
  // Which share of the global batch's sequences is this rank's, of how many (axes replicate and dp).
  int data_rank = 0, data_size = 1;
  // Among the ranks that write different parts of a checkpoint (replicas do not): its number, and how many there are.
  int part = 0, parts = 1;
  // Of the ranks that compute the same token losses, and of those that read the same sequences, the one whose sums count.
  bool counts_losses = true, counts_batch = true;

  // Plain data parallelism over one communicator.
  DataGroup(Communicator& axis)  // NOLINT
      : batch(axis),
        reduce(axis),
        gather(axis),
        everyone(&axis),
        data_rank(axis.rank()),
        data_size(axis.size()),
        part(axis.rank()),
        parts(axis.size()) {}
  DataGroup(Communicator& batch_, Communicator& reduce_, Communicator& gather_) : batch(batch_), reduce(reduce_), gather(gather_) {}

  bool counts_norms() const { return replicas == nullptr || replicas->rank() == 0; }
};

}  // namespace baleen
