#include "comm/ring/reduce_scatter.h"

#include <cstring>

namespace baleen {

// Slices travel in chunks of a slot. `window` chunks of every slice are taken through all steps together, so that a rank always has work
// while its neighbour is a little behind; with window < slots no rank can wait for itself around the ring: message i of a rank waits for
// message i - window of the previous rank and for the next rank to have taken message i - slots.
void ring_reduce_scatter(RingTransport& transport, const void* send, void* own, const Partition& partition, const Reducer& reducer) {
  const int n = transport.size(), rank = transport.rank();
  const auto* all = static_cast<const std::byte*>(send);
  auto* result = static_cast<std::byte*>(own);
  const SliceRange mine = partition.slice(rank);
  if (n == 1) {
    // One rank's sum is its own value, and so is its average.
    if (all != result && mine.size() != 0) std::memcpy(result, all, mine.size() * reducer.element_bytes);
    return;
  }
  const auto slice_in_step = [&](int step) { return ((rank - 1 - step) % n + n) % n; };  // that this rank sends
  const std::size_t piece = transport.slot_bytes() / reducer.wire_bytes;                 // elements a chunk
  const auto window = static_cast<std::size_t>(transport.slots() / 2);
  const std::size_t chunks = (partition.slice(0).size() + piece - 1) / piece;  // slice 0 is never shorter than another
  for (std::size_t first = 0; first < chunks; first += window) {
    for (int step = 0; step < n; ++step) {
      for (std::size_t index = first; index < std::min(first + window, chunks); ++index) {
        const SliceRange chunk = partition.chunk(slice_in_step(step), index, piece);
        if (chunk.size() == 0) continue;
        const std::byte* from_own = all + chunk.begin * reducer.element_bytes;
        const std::size_t wire_bytes = chunk.size() * reducer.wire_bytes;
        if (step == 0) {
          reducer.load(transport.next_slot(), from_own, chunk.size());
        } else if (step < n - 1) {
          const std::byte* arrived = transport.arrived(wire_bytes);
          reducer.combine(transport.next_slot(), arrived, from_own, chunk.size());
          transport.release();
        } else {
          std::byte* to = result + (chunk.begin - mine.begin) * reducer.element_bytes;
          reducer.finish(to, transport.arrived(wire_bytes), from_own, chunk.size(), n);
          transport.release();
        }
        if (step < n - 1) transport.commit(wire_bytes);
      }
    }
  }
}

}  // namespace baleen
