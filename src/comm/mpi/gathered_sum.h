// Sums of short buffers: everybody gets everybody's part by one call of MPI, and adds.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/mpi/transfer.h"
#include "comm/ring/partition.h"
#include "comm/ring/reducer.h"

namespace baleen::mpi {

// One exchange instead of the 2 · (n - 1) of a ring, for n times the bytes, in the same order of summation. An all_reduce gathers whole
// buffers, a reduce_scatter the parts of this rank's slice.
class GatheredSum final : public Transfer {
 public:
  // all_reduce or reduce_scatter.
  GatheredSum(const Link& link, const Operation& operation);
  bool test() override;

 private:
  // From the parts of all ranks, `stride` elements from one to the next, the elements `range` of them.
  void add(int slice, SliceRange range, std::size_t stride, std::byte* to);

  const Link& link_;
  const Operation& operation_;
  const Reducer reducer_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::vector<std::byte> gathered_, partial_;
};

}  // namespace baleen::mpi
