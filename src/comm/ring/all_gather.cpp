#include "comm/ring/all_gather.h"

#include <cstring>

namespace baleen {

// Chunks and window as in reduce_scatter.cpp.
void ring_all_gather(RingTransport& transport, const void* own, void* all, const Partition& partition, std::size_t element_bytes) {
  const int n = transport.size(), rank = transport.rank();
  auto* result = static_cast<std::byte*>(all);
  const SliceRange mine = partition.slice(rank);
  std::byte* place = result + mine.begin * element_bytes;
  if (own != place && mine.size() != 0) std::memcpy(place, own, mine.size() * element_bytes);
  if (n == 1) return;
  const auto slice_in_step = [&](int step) { return ((rank - step) % n + n) % n; };
  const std::size_t piece = transport.slot_bytes() / element_bytes;
  const auto window = static_cast<std::size_t>(transport.slots() / 2);
  const std::size_t chunks = (partition.slice(0).size() + piece - 1) / piece;
  for (std::size_t first = 0; first < chunks; first += window) {
    for (int step = 0; step < n; ++step) {
      for (std::size_t index = first; index < std::min(first + window, chunks); ++index) {
        const SliceRange chunk = partition.chunk(slice_in_step(step), index, piece);
        if (chunk.size() == 0) continue;
        std::byte* here = result + chunk.begin * element_bytes;
        const std::size_t bytes = chunk.size() * element_bytes;
        const std::byte* arrived = step == 0 ? nullptr : transport.arrived(bytes);
        // Handed on before it is kept: the next rank waits for it.
        if (step < n - 1) {
          std::memcpy(transport.next_slot(), step == 0 ? here : arrived, bytes);
          transport.commit(bytes);
        }
        if (step == 0) continue;
        std::memcpy(here, arrived, bytes);
        transport.release();
      }
    }
  }
}

}  // namespace baleen
