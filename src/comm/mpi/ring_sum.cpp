#include "comm/mpi/ring_sum.h"

#include <algorithm>

namespace baleen::mpi {
namespace {

// Bytes on the wire: more do not stay in a core's cache, fewer cost more calls than they gain.
constexpr std::size_t chunk_bytes = std::size_t{256} << 10;
constexpr std::size_t most_lanes = 4;
constexpr int first_tag = 16;

}  // namespace

RingSum::RingSum(const Link& link, const Operation& operation)
    : link_(link),
      operation_(operation),
      reducer_(reducer_for(operation.dtype, operation.op)),
      partition_(partition_of_sum(operation, link.size)),
      size_(link.size),
      exchanges_((link.size - 1) * (operation.kind == OperationKind::all_reduce ? 2 : 1)) {
  const std::size_t slice = partition_.slice(0).size();
  piece_ = std::max<std::size_t>(1, std::min({slice, chunk_bytes / reducer_.wire_bytes, link.largest_count / reducer_.wire_bytes}));
  chunks_ = (slice + piece_ - 1) / piece_;
  lanes_.resize(std::min(most_lanes, chunks_));
  const std::size_t bytes = piece_ * reducer_.wire_bytes;
  memory_.swap(link.spare->memory);
  if (memory_.size() < 2 * lanes_.size() * bytes) memory_.resize(2 * lanes_.size() * bytes);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.tag = first_tag + static_cast<int>(i);
    lane.chunk = i;
    lane.buffers = {memory_.data() + 2 * i * bytes, memory_.data() + (2 * i + 1) * bytes};
    begin(lane);
  }
}

RingSum::~RingSum() {
  memory_.swap(link_.spare->memory);
}

// Slice r - 1 goes off first, so that it is complete where it belongs; then each rank hands on what it has completed.
int RingSum::slice_sent(int exchange) const {
  const int step = exchange < size_ - 1 ? exchange + 1 : exchange - (size_ - 1);
  return ((link_.rank - step) % size_ + size_) % size_;
}

const std::byte* RingSum::own(SliceRange chunk) const {
  return static_cast<const std::byte*>(operation_.from) + chunk.begin * reducer_.element_bytes;
}

std::byte* RingSum::result(SliceRange chunk) const {
  const std::size_t first = operation_.kind == OperationKind::all_reduce ? 0 : partition_.slice(link_.rank).begin;
  return static_cast<std::byte*>(operation_.to) + (chunk.begin - first) * reducer_.element_bytes;
}

void RingSum::begin(Lane& lane) {
  const int k = lane.exchange, previous = (link_.rank + size_ - 1) % size_, next = (link_.rank + 1) % size_;
  const SliceRange out = partition_.chunk(slice_sent(k), lane.chunk, piece_), in = partition_.chunk(slice_received(k), lane.chunk, piece_);
  const bool adds = k < size_ - 1;
  const std::size_t element = adds ? reducer_.wire_bytes : reducer_.element_bytes;
  if (in.size() != 0) {
    void* const to = adds ? lane.buffers[static_cast<std::size_t>(k % 2)] : result(in);
    check(MPI_Irecv(to, static_cast<int>(in.size() * element), MPI_BYTE, previous, lane.tag, link_.comm, &lane.requests[0]), "MPI_Irecv");
  }
  if (out.size() == 0) return;
  const void* from = adds ? lane.buffers[static_cast<std::size_t>((k + 1) % 2)] : result(out);
  if (k == 0) {
    if (reducer_.wire_bytes == reducer_.element_bytes)
      from = own(out);
    else
      reducer_.load(lane.buffers[1], own(out), out.size());
  }
  check(MPI_Isend(from, static_cast<int>(out.size() * element), MPI_BYTE, next, lane.tag, link_.comm, &lane.requests[1]), "MPI_Isend");
}

// The exchange is complete: this rank's part is added to what came.
void RingSum::finish(const Lane& lane) {
  const int k = lane.exchange;
  const bool adds = k < size_ - 1;
  const SliceRange in = partition_.chunk(slice_received(k), lane.chunk, piece_);
  if (in.size() == 0) return;
  check_length(lane.statuses[0], in.size() * (adds ? reducer_.wire_bytes : reducer_.element_bytes), operation_);
  if (!adds) return;
  std::byte* const arrived = lane.buffers[static_cast<std::size_t>(k % 2)];
  if (k == size_ - 2)
    reducer_.finish(result(in), arrived, own(in), in.size(), size_);
  else
    reducer_.combine(arrived, arrived, own(in), in.size());
}

bool RingSum::advance(Lane& lane) {
  if (!test_all(lane.requests, operation_, lane.statuses)) return false;
  finish(lane);
  if (++lane.exchange == exchanges_) {
    lane.exchange = 0;
    lane.chunk += lanes_.size();
    if (lane.chunk >= chunks_) return true;
  }
  begin(lane);
  return false;
}

bool RingSum::test() {
  for (Lane& lane : lanes_)
    if (lane.chunk < chunks_ && advance(lane)) ++lanes_done_;
  return lanes_done_ == lanes_.size();
}

}  // namespace baleen::mpi
