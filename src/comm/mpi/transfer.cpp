#include "comm/mpi/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "comm/ring/reducer.h"

namespace baleen::mpi {
namespace {

constexpr int message_tag = 1;

const std::byte* at(const void* base, std::size_t bytes) {
  return static_cast<const std::byte*>(base) + bytes;
}
std::byte* at(void* base, std::size_t bytes) {
  return static_cast<std::byte*>(base) + bytes;
}

// Calls body(first, count) for consecutive pieces of at most `largest` elements.
template <class Body>
void in_pieces(std::size_t count, std::size_t largest, const Body& body) {
  for (std::size_t first = 0; first < count; first += largest) body(first, static_cast<int>(std::min(largest, count - first)));
}

}  // namespace

Transfer::Transfer(const Link& link, const Operation& operation) : link_(link), operation_(operation) {
  if (link.size == 1)
    copy_alone();
  else
    start();
  statuses_.resize(requests_.size());
}

// The sum of one, the blocks of one: what is not in place moves.
void Transfer::copy_alone() const {
  if (operation_.from != nullptr && operation_.to != nullptr && operation_.from != operation_.to)
    std::memmove(operation_.to, operation_.from, operation_.bytes());
}

MPI_Request* Transfer::request() {
  return &requests_.emplace_back(MPI_REQUEST_NULL);
}

void Transfer::start() {
  const Operation& o = operation_;
  if (o.kind == OperationKind::barrier) return check(MPI_Ibarrier(link_.comm, request()), "MPI_Ibarrier");
  if (o.count == 0 && !o.point_to_point()) return;  // on every rank alike
  switch (o.kind) {
    case OperationKind::all_reduce: return start_all_reduce();
    case OperationKind::reduce_scatter: return start_reduce_scatter();
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
    case OperationKind::none:
    case OperationKind::create:
    case OperationKind::barrier: break;
  }
  BALEEN_CHECK(false, "operation", static_cast<int>(o.kind));
}

void Transfer::start_all_reduce() {
  const Operation& o = operation_;
  const Reducer reducer = reducer_for(o.dtype, o.op);
  const MPI_Datatype type = reduction_type(o.dtype);
  const MPI_Op op = link_.operators->get(o.dtype, o.op);
  const bool wide = reducer.wire_bytes != reducer.element_bytes;
  void* result = o.to;
  if (wide) {
    scratch_.resize(o.count * reducer.wire_bytes);
    reducer.load(scratch_.data(), o.from, o.count);
    result = scratch_.data();
  }
  const bool in_place = wide || o.from == o.to;
  in_pieces(o.count, link_.largest_count, [&](std::size_t first, int count) {
    const void* from = in_place ? MPI_IN_PLACE : at(o.from, first * reducer.wire_bytes);
    check(MPI_Iallreduce(from, at(result, first * reducer.wire_bytes), count, type, op, link_.comm, request()), "MPI_Iallreduce");
  });
  if (needs_writing()) sum_ = result;
}

void Transfer::start_reduce_scatter() {
  const Operation& o = operation_;
  const Reducer reducer = reducer_for(o.dtype, o.op);
  const MPI_Datatype type = reduction_type(o.dtype);
  const MPI_Op op = link_.operators->get(o.dtype, o.op);
  const std::size_t all = o.count * static_cast<std::size_t>(link_.size);
  const bool wide = reducer.wire_bytes != reducer.element_bytes;
  // MPI does not allow the result inside what it is made from.
  const bool inside = at(o.to, 0) >= at(o.from, 0) && at(o.to, 0) < at(o.from, all * reducer.element_bytes);
  scratch_.resize(((wide ? all : 0) + (wide || inside ? o.count : 0)) * reducer.wire_bytes);
  const void* from = o.from;
  void* result = wide || inside ? scratch_.data() : o.to;
  if (wide) {
    std::byte* widened = at(scratch_.data(), o.count * reducer.wire_bytes);
    reducer.load(widened, o.from, all);
    from = widened;
  }
  if (o.count <= link_.largest_count) {
    check(MPI_Ireduce_scatter_block(from, result, static_cast<int>(o.count), type, op, link_.comm, request()), "MPI_Ireduce_scatter_block");
  } else {
    for (int root = 0; root < link_.size; ++root)
      in_pieces(o.count, link_.largest_count, [&](std::size_t first, int count) {
        const void* block = at(from, (static_cast<std::size_t>(root) * o.count + first) * reducer.wire_bytes);
        void* to = root == link_.rank ? at(result, first * reducer.wire_bytes) : nullptr;
        check(MPI_Ireduce(block, to, count, type, op, root, link_.comm, request()), "MPI_Ireduce");
      });
  }
  if (needs_writing() || result != o.to) sum_ = result;
}

void Transfer::start_all_gather() {
  const Operation& o = operation_;
  const Block block(o.bytes(), link_.largest_count);
  const bool in_place = o.from == at(o.to, o.bytes() * static_cast<std::size_t>(link_.rank));
  check(MPI_Iallgather(in_place ? MPI_IN_PLACE : o.from, block.count(), block.type(), o.to, block.count(), block.type(), link_.comm,
                       request()),
        "MPI_Iallgather");
}

void Transfer::start_all_to_all() {
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

bool Transfer::test() {
  int complete = 1;
  if (!requests_.empty()) {
    int status = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete, statuses_.data());
    if (status == MPI_ERR_IN_STATUS)
      for (const MPI_Status& one : statuses_)
        if (one.MPI_ERROR != MPI_SUCCESS && one.MPI_ERROR != MPI_ERR_PENDING) status = one.MPI_ERROR;
    if (status != MPI_SUCCESS)
      throw Error(ExitCode::rank_failed, fmt::format("{} failed: {}", describe(operation_.tag()), error_text(status)), "MPI_Testall",
                  "a truncated message means that ranks run different operations, which is a bug; else see what mpirun printed");
  }
  if (complete == 0) return false;
  if (operation_.kind == OperationKind::recv && link_.size > 1) check_length(statuses_.front());
  if (sum_ != nullptr) write_result(sum_, operation_.to);
  return true;
}

// A longer message than expected is an error of MPI's own; a shorter one is not.
void Transfer::check_length(const MPI_Status& status) const {
  MPI_Count bytes = 0;
  check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x");
  if (static_cast<std::size_t>(bytes) == operation_.bytes()) return;
  throw Error(ExitCode::rank_failed, fmt::format("{} expects {} bytes, but {} came", describe(operation_.tag()), operation_.bytes(), bytes),
              "", "this is a bug: both ends of a message must agree");
}

void Transfer::write_result(const void* wire, void* to) const {
  const Operation& o = operation_;
  if (!needs_writing()) {
    std::memcpy(to, wire, o.bytes());
    return;
  }
  // The last step of a sum, whose other operand is zero: it averages and rounds.
  const Reducer reducer = reducer_for(o.dtype, o.op == ReduceOp::avg ? ReduceOp::avg : ReduceOp::sum);
  alignas(64) static constexpr std::array<std::byte, 32768> zeros{};
  const std::size_t piece = zeros.size() / reducer.element_bytes;
  for (std::size_t first = 0; first < o.count; first += piece)
    reducer.finish(at(to, first * reducer.element_bytes), at(wire, first * reducer.wire_bytes), zeros.data(),
                   std::min(piece, o.count - first), link_.size);
}

std::size_t bytes_on_the_wire(const Operation& operation, int rank, int size) {
  const std::size_t parts = static_cast<std::size_t>(size);
  const std::size_t element = operation.dtype == DType::bf16 ? sizeof(float) : dtype_bytes(operation.dtype);  // of a reduction
  switch (operation.kind) {
    case OperationKind::all_reduce: return 2 * operation.count * element / parts * (parts - 1);
    case OperationKind::reduce_scatter: return operation.count * element * (parts - 1);
    case OperationKind::all_gather:
    case OperationKind::all_to_all: return operation.bytes() * (parts - 1);
    case OperationKind::broadcast: return (rank + 1) % size == operation.root || size == 1 ? 0 : operation.bytes();
    case OperationKind::send: return operation.bytes();
    default: return 0;
  }
}

}  // namespace baleen::mpi
