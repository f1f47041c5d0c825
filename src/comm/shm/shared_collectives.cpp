#include "comm/shm/shared_collectives.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "comm/copy.h"
#include "comm/ring/partition.h"
#include "comm/ring/reducer.h"

namespace baleen::shm {
namespace {

// Elements that are summed at a time: the parts that several ranks contribute, and the sum, stay in the first two levels of cache.
constexpr std::size_t piece = 2048;

// What one rank contributes, bytes.
std::size_t contribution(const Operation& operation, int size) {
  const bool parts = operation.kind == OperationKind::reduce_scatter || operation.kind == OperationKind::all_to_all;
  return operation.bytes() * (parts ? static_cast<std::size_t>(size) : 1);
}

}  // namespace

SharedCollectives::SharedCollectives(Port& port, std::span<std::byte> heap)
    : port_(port), heap_(heap), from_(static_cast<std::size_t>(port.size())), to_(from_.size()), partial_(piece * sizeof(double)) {}

bool SharedCollectives::run(const Operation& operation) {
  if (operation.kind == OperationKind::barrier) {
    port_.meet();
    return true;
  }
  if (port_.size() == 1) return false;
  if (short_message(operation)) {
    run_short(operation);
  } else if (!run_in_place(operation)) {
    return false;
  }
  count_bytes(operation);
  return true;
}

// Every rank reads every note: with many ranks they must be shorter.
bool SharedCollectives::short_message(const Operation& operation) const {
  const auto n = static_cast<std::size_t>(port_.size());
  return contribution(operation, port_.size()) <= std::min(note_bytes, 16 * note_bytes / n);
}

void SharedCollectives::run_short(const Operation& operation) {
  const int n = port_.size(), rank = port_.rank();
  const std::size_t bytes = contribution(operation, n);
  const void* mine = operation.from;
  const bool sends = operation.kind != OperationKind::broadcast || rank == operation.root;
  if (sends && bytes != 0) copy_bytes(port_.note_space(), mine, bytes);
  port_.post({operation.tag(), 0, 0});
  for (int step = 1; step < n; ++step) port_.note_from((rank + step) % n);
  for (int member = 0; member < n; ++member) from_[static_cast<std::size_t>(member)] = port_.note_message(member);
  auto* to = static_cast<std::byte*>(operation.to);
  const std::size_t element = dtype_bytes(operation.dtype), each = operation.bytes();
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      const Partition partition = Partition::of_all_reduce(operation.count, n);
      for (int slice = 0; slice < n; ++slice) {
        const SliceRange range = partition.slice(slice);
        if (range.size() != 0) reduce(operation, slice, range, to + range.begin * element, false);
      }
      return;
    }
    case OperationKind::reduce_scatter: {
      const std::size_t begin = static_cast<std::size_t>(rank) * operation.count;
      return reduce(operation, rank, {begin, begin + operation.count}, to, false);
    }
    case OperationKind::all_gather:
      for (int member = 0; member < n && each != 0; ++member) copy_bytes(to + static_cast<std::size_t>(member) * each, source(member, 0), each);
      return;
    case OperationKind::all_to_all:
      for (int member = 0; member < n && each != 0; ++member)
        copy_bytes(to + static_cast<std::size_t>(member) * each, source(member, static_cast<std::size_t>(rank) * each), each);
      return;
    case OperationKind::broadcast:
      if (!sends && each != 0) copy_bytes(to, source(operation.root, 0), each);
      return;
    default: BALEEN_CHECK(false, "operation", static_cast<int>(operation.kind));
  }
}

std::uint64_t SharedCollectives::offset_of(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  if (std::less<>()(at, heap_.data()) || std::greater_equal<>()(at, heap_.data() + heap_.size())) return 0;
  return 1 + static_cast<std::uint64_t>(at - heap_.data());
}

bool SharedCollectives::run_in_place(const Operation& operation) {
  const int n = port_.size(), rank = port_.rank();
  port_.post({operation.tag(), offset_of(operation.from), offset_of(operation.to)});
  bool possible = true;
  for (int step = 0; step < n; ++step) {
    const int member = (rank + step) % n;
    const NoteHeader& note = port_.note_from(member);
    from_[static_cast<std::size_t>(member)] = note.from == 0 ? nullptr : heap_.data() + note.from - 1;
    to_[static_cast<std::size_t>(member)] = note.to == 0 ? nullptr : heap_.data() + note.to - 1;
    if (operation.kind != OperationKind::broadcast || member == operation.root) possible &= note.from != 0;
    if (operation.kind == OperationKind::all_reduce) possible &= note.to != 0;
    // Blocks that change places would overwrite each other.
    if (operation.kind == OperationKind::all_to_all) possible &= note.from != note.to;
  }
  if (!possible) return false;
  auto* to = static_cast<std::byte*>(operation.to);
  const std::size_t element = dtype_bytes(operation.dtype), each = operation.bytes();
  // The others in the order of the ring, so that not all read from one.
  const auto for_others = [&](auto&& body) {
    for (int step = 1; step < n; ++step) body((rank + step) % n);
  };
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      // Slice k of every buffer is touched by rank k alone.
      const SliceRange range = Partition::of_all_reduce(operation.count, n).slice(rank);
      reduce(operation, rank, range, to + range.begin * element, true);
      break;
    }
    case OperationKind::reduce_scatter: {
      const std::size_t begin = static_cast<std::size_t>(rank) * operation.count;
      reduce(operation, rank, {begin, begin + operation.count}, to, false);
      break;
    }
    case OperationKind::all_gather: {
      std::byte* const own = to + static_cast<std::size_t>(rank) * each;
      if (own != operation.from) copy_bytes(own, operation.from, each);
      for_others([&](int member) { copy_bytes(to + static_cast<std::size_t>(member) * each, source(member, 0), each); });
      break;
    }
    case OperationKind::all_to_all: {
      const std::size_t block = static_cast<std::size_t>(rank) * each;
      copy_bytes(to + block, source(rank, block), each);
      for_others([&](int member) { copy_bytes(to + static_cast<std::size_t>(member) * each, source(member, block), each); });
      break;
    }
    case OperationKind::broadcast:
      if (rank != operation.root) copy_bytes(to, source(operation.root, 0), each);
      break;
    default: BALEEN_CHECK(false, "operation", static_cast<int>(operation.kind));
  }
  port_.meet();  // the buffers are their owners' again
  return true;
}

void SharedCollectives::reduce(const Operation& operation, int slice, SliceRange range, std::byte* to, bool to_everyone) {
  const int n = port_.size(), rank = port_.rank();
  const Reducer reducer = reducer_for(operation.dtype, operation.op);
  const std::size_t element = reducer.element_bytes;
  for (std::size_t begin = range.begin; begin < range.end; begin += piece) {
    const std::size_t count = std::min(piece, range.end - begin), at = begin * element;
    std::byte* const result = to + (begin - range.begin) * element;
    const void* sum = source((slice + 1) % n, at);
    if (reducer.wire_bytes != element) {
      reducer.load(partial_.data(), sum, count);
      sum = partial_.data();
    }
    for (int step = 2; step < n; ++step) {
      reducer.combine(partial_.data(), sum, source((slice + step) % n, at), count);
      sum = partial_.data();
    }
    reducer.finish(result, sum, source(slice, at), count, n);
    if (!to_everyone) continue;
    for (int step = 1; step < n; ++step) copy_bytes(to_[static_cast<std::size_t>((rank + step) % n)] + at, result, count * element);
  }
}

// As many as the ring's messages would have.
void SharedCollectives::count_bytes(const Operation& operation) const {
  const int n = port_.size(), rank = port_.rank();
  const std::size_t element = dtype_bytes(operation.dtype), others = static_cast<std::size_t>(n - 1) * operation.bytes();
  const auto wire = [&] { return reducer_for(operation.dtype, operation.op).wire_bytes; };
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      const Partition partition = Partition::of_all_reduce(operation.count, n);
      return port_.count_sent((operation.count - partition.slice(rank).size()) * wire() +
                              (operation.count - partition.slice((rank + 1) % n).size()) * element);
    }
    case OperationKind::reduce_scatter: return port_.count_sent(others / element * wire());
    case OperationKind::all_gather:
    case OperationKind::all_to_all: return port_.count_sent(others);
    case OperationKind::broadcast: return port_.count_sent((rank + 1) % n == operation.root ? 0 : operation.bytes());
    default: return;
  }
}

}  // namespace baleen::shm
