// Broadcast along a chain: root, root+1, …, root-1, in chunks, so that all links are busy at once.
#pragma once

#include "comm/ring/transport.h"

namespace baleen {

void ring_broadcast(RingTransport& transport, void* buffer, std::size_t bytes, int root);

}  // namespace baleen
