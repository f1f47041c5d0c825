#include "comm/mpi/transfer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "comm/mpi/gathered_sum.h"
#include "comm/mpi/library_transfer.h"
#include "comm/mpi/ring_sum.h"

namespace baleen::mpi {

namespace {

// Below this many bytes (all of a buffer), one exchange of n times the bytes takes less time than the many exchanges of a ring, whatever
// the number of ranks: (n - 2) · bytes / bandwidth < 2 · (n - 1) · latency.
constexpr std::size_t shortest_ring = std::size_t{64} << 10;

bool is_sum(const Operation& operation) {
  return operation.kind == OperationKind::all_reduce || operation.kind == OperationKind::reduce_scatter;
}

bool in_a_ring(const Operation& operation, int size) {
  return partition_of_sum(operation, size).count * dtype_bytes(operation.dtype) >= shortest_ring;
}

}  // namespace

Partition partition_of_sum(const Operation& operation, int size) {
  return operation.kind == OperationKind::all_reduce ? Partition::of_all_reduce(operation.count, size)
                                                     : Partition::of_equal_parts(operation.count, size);
}

std::unique_ptr<Transfer> start_transfer(const Link& link, const Operation& operation) {
  if (link.size == 1 || operation.count == 0 || !is_sum(operation)) return std::make_unique<LibraryTransfer>(link, operation);
  if (in_a_ring(operation, link.size)) return std::make_unique<RingSum>(link, operation);
  return std::make_unique<GatheredSum>(link, operation);
}

bool test_all(std::span<MPI_Request> requests, const Operation& operation, std::span<MPI_Status> statuses) {
  int complete = 1;
  if (requests.empty()) return true;
  int status =
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &complete, statuses.empty() ? MPI_STATUSES_IGNORE : statuses.data());
  if (status == MPI_ERR_IN_STATUS)
    for (const MPI_Status& one : statuses)
      if (one.MPI_ERROR != MPI_SUCCESS && one.MPI_ERROR != MPI_ERR_PENDING) status = one.MPI_ERROR;
  if (status != MPI_SUCCESS)
    throw Error(ExitCode::rank_failed, fmt::format("{} failed: {}", describe(operation.tag()), error_text(status)), "MPI_Testall",
                "a truncated message means that ranks run different operations, which is a bug; else see what mpirun printed");
  return complete != 0;
}

void check_length(const MPI_Status& status, std::size_t bytes, const Operation& operation) {
  MPI_Count came = 0;
  check(MPI_Get_elements_x(&status, MPI_BYTE, &came), "MPI_Get_elements_x");
  if (static_cast<std::size_t>(came) == bytes) return;
  throw Error(ExitCode::rank_failed, fmt::format("{} expects {} bytes, but {} came", describe(operation.tag()), bytes, came), "",
              "this is a bug: both ends of a message must agree");
}

std::size_t bytes_on_the_wire(const Link& link, const Operation& operation) {
  const std::size_t parts = static_cast<std::size_t>(link.size), bytes = operation.bytes();
  // A ring sends the dtype's partial sums, then its results.
  const std::size_t summed = operation.dtype == DType::bf16 ? bytes / sizeof(BFloat16) * sizeof(float) : bytes;
  switch (operation.kind) {
    case OperationKind::all_reduce: return (summed + bytes) / parts * (parts - 1);
    case OperationKind::reduce_scatter: return summed * (parts - 1);
    case OperationKind::all_gather:
    case OperationKind::all_to_all: return bytes * (parts - 1);
    case OperationKind::broadcast: return (link.rank + 1) % link.size == operation.root || link.size == 1 ? 0 : bytes;
    case OperationKind::send: return bytes;
    default: return 0;
  }
}

}  // namespace baleen::mpi
