#include "comm/ring/all_to_all.h"

#include <algorithm>
#include <cstring>

namespace baleen {
namespace {

// Some chunks are sent before any is awaited, so that both directions are busy; fewer than the slots, so that neither waits for a slot that
// the other gives back only later. What is sent has left its place before anything arrives there, hence in place needs no copy.
void swap_blocks(PairTransport& transport, int peer, const std::byte* outgoing, std::byte* incoming, std::size_t bytes) {
  const std::size_t piece = transport.slot_bytes();
  const std::size_t window = static_cast<std::size_t>(transport.slots() / 2) * piece;
  for (std::size_t first = 0; first < bytes; first += window) {
    const std::size_t end = std::min(first + window, bytes);
    for (std::size_t begin = first; begin < end; begin += piece) {
      const std::size_t length = std::min(piece, end - begin);
      std::memcpy(transport.slot_to(peer), outgoing + begin, length);
      transport.commit_to(peer, length);
    }
    for (std::size_t begin = first; begin < end; begin += piece) {
      const std::size_t length = std::min(piece, end - begin);
      std::memcpy(incoming + begin, transport.arrived_from(peer, length), length);
      transport.release_from(peer);
    }
  }
}

}  // namespace

void pairwise_all_to_all(PairTransport& transport, const void* send, void* recv, std::size_t bytes) {
  const int n = transport.size(), rank = transport.rank();
  if (bytes == 0) return;
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  for (int step = 0; step < n; ++step) {
    const int peer = (step - rank + n) % n;
    const std::size_t block = static_cast<std::size_t>(peer) * bytes;
    if (peer != rank)
      swap_blocks(transport, peer, from + block, to + block, bytes);
    else if (from != to)
      std::memcpy(to + block, from + block, bytes);
  }
}

}  // namespace baleen
