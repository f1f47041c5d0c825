#include "comm/mpi/library_transfer.h"

#include <cstring>

#include "base/error.h"

namespace baleen::mpi {
namespace {

constexpr int message_tag = 1;

const std::byte* at(const void* base, std::size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* at(void* base, std::size_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}

}  // namespace

LibraryTransfer::LibraryTransfer(const Link& link, const Operation& operation) : link_(link), operation_(operation) {
  if (link.size == 1)
    copy_alone();
  else
    start();
  statuses_.resize(requests_.size());
}

// The sum of one, the blocks of one: what is not in place moves.
void LibraryTransfer::copy_alone() const {
  if (operation_.from != nullptr && operation_.to != nullptr && operation_.from != operation_.to)
    std::memmove(operation_.to, operation_.from, operation_.bytes());
}

MPI_Request* LibraryTransfer::request() {
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

void LibraryTransfer::start() {
  const Operation& o = operation_;
  if (o.kind == OperationKind::barrier) return check(MPI_Ibarrier(link_.comm, request()), "MPI_Ibarrier");
  if (o.count == 0 && !o.point_to_point()) return;  // on every rank alike
  switch (o.kind) {
    case OperationKind::all_gather: return start_all_gather();
    case OperationKind::all_to_all: return start_all_to_all();
    case OperationKind::broadcast: {
      const Block block(o.bytes(), link_.largest_count);
      return check(MPI_Ibcast(o.to, block.count(), block.type(), o.root, link_.comm, request()), "MPI_Ibcast");
    }
    case OperationKind::send: {
      const Block block(o.bytes(), link_.largest_count);
      return check(MPI_Isend(o.from, block.count(), block.type(), o.root, message_tag, link_.comm, request()), "MPI_Isend");
    }
    case OperationKind::recv: {
      const Block block(o.bytes(), link_.largest_count);
      return check(MPI_Irecv(o.to, block.count(), block.type(), o.root, message_tag, link_.comm, request()), "MPI_Irecv");
    }
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
    case OperationKind::none:
    case OperationKind::create:
    case OperationKind::barrier: break;
  }
  BALEEN_CHECK(false, "operation", static_cast<int>(o.kind));
}

void LibraryTransfer::start_all_gather() {
  const Operation& o = operation_;
  const Block block(o.bytes(), link_.largest_count);
  const bool in_place = o.from == at(o.to, o.bytes() * static_cast<std::size_t>(link_.rank));
  check(MPI_Iallgather(in_place ? MPI_IN_PLACE : o.from, block.count(), block.type(), o.to, block.count(), block.type(), link_.comm,
                       request()),
        "MPI_Iallgather");
}

void LibraryTransfer::start_all_to_all() {
  const Operation& o = operation_;
  const Block block(o.bytes(), link_.largest_count);
  const void* from = o.from;
  if (o.from == o.to) {
    const std::size_t all = o.bytes() * static_cast<std::size_t>(link_.size);
    scratch_.assign(at(o.from, 0), at(o.from, all));
    from = scratch_.data();
  }
  check(MPI_Ialltoall(from, block.count(), block.type(), o.to, block.count(), block.type(), link_.comm, request()), "MPI_Ialltoall");
}

bool LibraryTransfer::test() {
  if (!test_all(requests_, operation_, statuses_)) return false;
  if (operation_.kind == OperationKind::recv && link_.size > 1) check_length(statuses_.front(), operation_.bytes(), operation_);
  return true;
}

}  // namespace baleen::mpi
