// All-gather around a ring: every slice is handed on until all ranks have it.
//
// n-1 steps; in step s rank r sends slice r-s and receives slice r-1-s. Each rank sends (n-1)/n of the result once.
#pragma once

#include "comm/ring/partition.h"
#include "comm/ring/transport.h"

namespace baleen {

// `own` is this rank's slice (it may lie inside `all`, in place); `all` receives the whole partition.
void ring_all_gather(RingTransport& transport, const void* own, void* all, const Partition& partition, std::size_t element_bytes);

}  // namespace baleen
