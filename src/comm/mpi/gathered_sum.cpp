#include "comm/mpi/gathered_sum.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace baleen::mpi {
namespace {

constexpr std::size_t head_bytes = 16;
static_assert(sizeof(OperationTag) == head_bytes);

}  // namespace

GatheredSum::GatheredSum(const Link& link, const Operation& operation)
    : link_(link), operation_(operation), reducer_(reducer_for(operation.dtype, operation.op)) {
  const bool all = operation.kind == OperationKind::all_reduce;
  part_bytes_ = head_bytes + (operation.bytes() + head_bytes - 1) / head_bytes * head_bytes;  // every part aligned
  sent_.resize(part_bytes_ * (all ? 1 : static_cast<std::size_t>(link.size)));
  gathered_.resize(part_bytes_ * static_cast<std::size_t>(link.size));
  partial_.resize(operation.count * reducer_.wire_bytes);
  const OperationTag head = operation.tag();
  const auto* from = static_cast<const std::byte*>(operation.from);
  for (std::byte* part = sent_.data(); part != sent_.data() + sent_.size(); part += part_bytes_, from += operation.bytes()) {
    std::memcpy(part, &head, head_bytes);
    std::memcpy(part + head_bytes, from, operation.bytes());
  }
  const int bytes = static_cast<int>(part_bytes_);
  if (all)
    check(MPI_Iallgather(sent_.data(), bytes, MPI_BYTE, gathered_.data(), bytes, MPI_BYTE, link.comm, &request_), "MPI_Iallgather");
  else
    check(MPI_Ialltoall(sent_.data(), bytes, MPI_BYTE, gathered_.data(), bytes, MPI_BYTE, link.comm, &request_), "MPI_Ialltoall");
}

void GatheredSum::check_heads() const {
  for (int rank = 0; rank < link_.size; ++rank) {
    OperationTag head;
    std::memcpy(&head, gathered_.data() + static_cast<std::size_t>(rank) * part_bytes_, head_bytes);
    if (head == operation_.tag()) continue;
    throw Error(ExitCode::rank_failed,
                fmt::format("member {} runs {}, member {} runs {} instead", link_.rank, describe(operation_.tag()), rank, describe(head)),
                "", "this is a bug: all members must run the same operations in the same order");
  }
}

void GatheredSum::add(int slice, SliceRange range, std::byte* to) {
  const auto part = [&](int rank) {
    return gathered_.data() + static_cast<std::size_t>(rank % link_.size) * part_bytes_ + head_bytes + range.begin * reducer_.element_bytes;
  };
  reducer_.load(partial_.data(), part(slice + 1), range.size());
  for (int step = 2; step < link_.size; ++step) reducer_.combine(partial_.data(), partial_.data(), part(slice + step), range.size());
  reducer_.finish(to, partial_.data(), part(slice), range.size(), link_.size);
}

bool GatheredSum::test() {
  if (!test_all({&request_, 1}, operation_)) return false;
  check_heads();
  auto* const to = static_cast<std::byte*>(operation_.to);
  if (operation_.kind == OperationKind::reduce_scatter) {
    add(link_.rank, {0, operation_.count}, to);
    return true;
  }
  const Partition partition = partition_of_sum(operation_, link_.size);
  for (int slice = 0; slice < link_.size; ++slice) {
    const SliceRange range = partition.slice(slice);
    if (range.size() != 0) add(slice, range, to + range.begin * reducer_.element_bytes);
  }
  return true;
}

}  // namespace baleen::mpi
