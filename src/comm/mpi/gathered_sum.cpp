#include "comm/mpi/gathered_sum.h"

namespace baleen::mpi {

GatheredSum::GatheredSum(const Link& link, const Operation& operation)
    : link_(link), operation_(operation), reducer_(reducer_for(operation.dtype, operation.op)) {
  const int bytes = static_cast<int>(operation.bytes());
  gathered_.resize(operation.bytes() * static_cast<std::size_t>(link.size));
  partial_.resize(operation.count * reducer_.wire_bytes);
  if (operation.kind == OperationKind::all_reduce)
    check(MPI_Iallgather(operation.from, bytes, MPI_BYTE, gathered_.data(), bytes, MPI_BYTE, link.comm, &request_), "MPI_Iallgather");
  else
    check(MPI_Ialltoall(operation.from, bytes, MPI_BYTE, gathered_.data(), bytes, MPI_BYTE, link.comm, &request_), "MPI_Ialltoall");
}

void GatheredSum::add(int slice, SliceRange range, std::size_t stride, std::byte* to) {
  const auto part = [&](int rank) {
    return gathered_.data() + (static_cast<std::size_t>(rank % link_.size) * stride + range.begin) * reducer_.element_bytes;
  };
  reducer_.load(partial_.data(), part(slice + 1), range.size());
  for (int step = 2; step < link_.size; ++step) reducer_.combine(partial_.data(), partial_.data(), part(slice + step), range.size());
  reducer_.finish(to, partial_.data(), part(slice), range.size(), link_.size);
}

bool GatheredSum::test() {
  if (!test_all({&request_, 1}, operation_)) return false;
  auto* const to = static_cast<std::byte*>(operation_.to);
  if (operation_.kind == OperationKind::reduce_scatter) {
    add(link_.rank, {0, operation_.count}, operation_.count, to);
    return true;
  }
  const Partition partition = partition_of_sum(operation_, link_.size);
  for (int slice = 0; slice < link_.size; ++slice) {
    const SliceRange range = partition.slice(slice);
    if (range.size() != 0) add(slice, range, operation_.count, to + range.begin * reducer_.element_bytes);
  }
  return true;
}

}  // namespace baleen::mpi
