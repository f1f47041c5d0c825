// Replicas of a weight must hold the same bits. A hash of every parameter, compared over an axis, finds the rank that drifted.
#pragma once

#include "comm/communicator.h"
#include "sharding/data_group.h"
#include "sharding/unit_storage.h"

namespace baleen {

// Collective over `axis`. Throws Error (ExitCode::bad_numbers) on every rank, naming the ranks that differ from the majority (with two
// ranks: from rank 0) and the first parameter in which they do.
void check_replicas(Communicator& axis, const UnitStorage& storage);

// The same over every axis on which `storage` holds weights in common: data ranks (of ZeRO-3 those with the same shard), ranks of tensor
// parallelism for what several of them hold, the two ends of a pipeline for a tied embedding.
void check_replicas(const DataGroup& group, const UnitStorage& storage);

}  // namespace baleen
