// Sums around a ring of messages: what large all_reduces and reduce_scatters are made of (docs/decisions/012-sums-over-mpi.md).
#pragma once

#include <array>
#include <vector>

#include "comm/mpi/transfer.h"
#include "comm/ring/partition.h"
#include "comm/ring/reducer.h"

namespace baleen::mpi {

// The ring of ring/reduce_scatter.h (P. Patarasuk and X. Yuan, JPDC 69(2), 2009) and its order of summation, in chunks that stay in a
// core's cache: a few chunks are on their way at once, each in a lane of its own, so that one is added while others travel. bf16 travels as
// fp32 while it is summed, and as itself when the sums are handed on.
class RingSum final : public Transfer {
 public:
  // all_reduce or reduce_scatter, of two ranks or more.
  RingSum(const Link& link, const Operation& operation);
  ~RingSum() override;
  bool test() override;

 private:
  // One chunk of every slice at a time goes through all exchanges: n - 1 that add and, for an all_reduce, n - 1 that hand on.
  struct Lane {
    int tag = 0;
    std::size_t chunk = 0;
    int exchange = 0;
    std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    std::array<MPI_Status, 2> statuses{};
    std::array<std::byte*, 2> buffers{};  // what exchange k receives is in buffers[k % 2]; it is what the next one sends
  };

  // One exchange at most; true when no chunk is left for the lane.
  bool advance(Lane& lane);
  void begin(Lane& lane);
  void finish(const Lane& lane);
  int slice_sent(int exchange) const;
  int slice_received(int exchange) const { return (slice_sent(exchange) + size_ - 1) % size_; }
  // A chunk's elements where the operation reads and writes them.
  const std::byte* own(SliceRange chunk) const;
  std::byte* result(SliceRange chunk) const;

  const Link& link_;
  const Operation& operation_;
  const Reducer reducer_;
  const Partition partition_;
  const int size_;
  const int exchanges_;
  std::size_t piece_ = 0, chunks_ = 0;  // elements of a chunk; chunks of the longest slice
  std::vector<std::byte> memory_;
  std::vector<Lane> lanes_;
  std::size_t lanes_done_ = 0;
};

}  // namespace baleen::mpi
