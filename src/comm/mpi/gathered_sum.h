// Sums of short buffers: everybody gets everybody's part by one call of MPI, and adds.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/mpi/transfer.h"
#include "comm/ring/partition.h"
#include "comm/ring/reducer.h"

namespace baleen::mpi {

// One exchange instead of the 2 · (n - 1) of a ring, for n times the bytes, in the same order of summation. An all_reduce gathers whole
// buffers, a reduce_scatter the parts of this rank's slice. Each part is headed by what its rank takes the operation to be: MPI notices
// only some of the mistakes of ranks that run different ones.
class GatheredSum final : public Transfer {
 public:
  // all_reduce or reduce_scatter.
  GatheredSum(const Link& link, const Operation& operation);
  bool test() override;

 private:
  void check_heads() const;
  // The elements `range` of all ranks' parts, which become slice `slice`.
  void add(int slice, SliceRange range, std::byte* to);

  const Link& link_;
  const Operation& operation_;
  const Reducer reducer_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  std::size_t part_bytes_ = 0;  // with its head
  std::vector<std::byte> sent_, gathered_, partial_;
};

}  // namespace baleen::mpi
