// Reduce-scatter around a ring: every slice visits all ranks once and stays, summed, with its owner.
//
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
// Each rank sends (n-1)/n of the data once: no algorithm can send less. In n-1 steps; in step s rank r sends slice r-1-s and receives
// slice r-2-s, so slice k starts at rank k+1, is summed over k+1, k+2, … and is complete at rank k: the order of docs/parallelism.md.
#pragma once

#include "comm/ring/partition.h"
#include "comm/ring/reducer.h"
#include "comm/ring/transport.h"

namespace baleen {

// `send` holds the whole partition; `own` receives the reduced slice of this rank and may be that slice of `send`.
void ring_reduce_scatter(RingTransport& transport, const void* send, void* own, const Partition& partition, const Reducer& reducer);

}  // namespace baleen
