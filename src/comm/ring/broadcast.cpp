#include "comm/ring/broadcast.h"

#include <algorithm>
#include <cstring>

namespace baleen {

void ring_broadcast(RingTransport& transport, void* buffer, std::size_t bytes, int root) {
  const int n = transport.size();
  if (n == 1) return;
  const bool first = transport.rank() == root, last = (transport.rank() + 1) % n == root;
  auto* here = static_cast<std::byte*>(buffer);
  for (std::size_t begin = 0; begin < bytes; begin += transport.slot_bytes()) {
    const std::size_t length = std::min(transport.slot_bytes(), bytes - begin);
    const std::byte* arrived = first ? nullptr : transport.arrived(length);
    if (!last) {
      std::memcpy(transport.next_slot(), first ? here + begin : arrived, length);
      transport.commit(length);
    }
    if (first) continue;
    std::memcpy(here + begin, arrived, length);
    transport.release();
  }
}

}  // namespace baleen
