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
std::size_t contribution(const Request& operation, int size) {
  const bool parts = operation.kind == OperationKind::reduce_scatter || operation.kind == OperationKind::all_to_all;
  return operation.bytes() * (parts ? static_cast<std::size_t>(size) : 1);
}

// Lines that others have read must be fetched back before they are written: asked for all at once they come side by side.
void claim(std::byte* at, std::size_t bytes) {
  for (std::size_t line = 0; line < bytes; line += cache_line) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(at[line]));
#else
    __builtin_prefetch(at + line, 1);
#endif
  }
}

}  // namespace

SharedCollectives::SharedCollectives(Port& port, std::span<std::byte> heap)
    : port_(port), heap_(heap), from_(static_cast<std::size_t>(port.size())), to_(from_.size()), partial_(piece * sizeof(double)) {}

bool SharedCollectives::run(const Request& operation) {
  if (fits_notes(operation)) {
    if (!posted_) post_short(operation);
    finish_short(operation);
    return true;
  }
  if (port_.size() == 1 || !run_in_place(operation)) return false;
  count_bytes(operation);
  return true;
}

bool SharedCollectives::run_at_once(const Request& operation) {
  post_short(operation);
  if (!port_.notes_come_soon()) return false;
  finish_short(operation);
  return true;
}

// Every rank reads every note: with many ranks they must be shorter.
bool SharedCollectives::fits_notes(const Request& operation) const {
  const auto n = static_cast<std::size_t>(port_.size());
  if (operation.kind == OperationKind::barrier) return true;
  return n != 1 && !operation.point_to_point() && contribution(operation, port_.size()) <= std::min(note_bytes, 16 * note_bytes / n);
}

// Writes what the others need of this rank's.
void SharedCollectives::post_short(const Request& operation) {
  const auto rank = static_cast<std::size_t>(port_.rank()), n = static_cast<std::size_t>(port_.size());
  const auto* mine = static_cast<const std::byte*>(operation.from);
  std::byte* const note = port_.note_space();
  const std::size_t each = operation.bytes();
  const auto write = [&](std::size_t offset, std::size_t bytes) {
    claim(note + offset, bytes);
    copy_bytes(note + offset, mine + offset, bytes);
  };
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::all_gather: write(0, each); break;
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all:
      write(0, rank * each);
      write((rank + 1) * each, (n - 1 - rank) * each);
      break;
    case OperationKind::broadcast:
      if (port_.rank() == operation.root) write(0, each);
      break;
    default: break;
  }
  port_.post({operation.tag(), 0, 0});
  posted_ = true;
}

void SharedCollectives::finish_short(const Request& operation) {
  const int n = port_.size(), rank = port_.rank();
  for (int step = 1; step < n; ++step) {
    const int member = (rank + step) % n;
    port_.note_from(member);
    from_[static_cast<std::size_t>(member)] = port_.note_message(member);
  }
  posted_ = false;
  from_[static_cast<std::size_t>(rank)] = static_cast<const std::byte*>(operation.from);
  auto* to = static_cast<std::byte*>(operation.to);
  const std::size_t element = dtype_bytes(operation.dtype), each = operation.bytes(), own = static_cast<std::size_t>(rank) * each;
  const auto take = [&](int member, std::size_t offset) {
    std::byte* const at = to + static_cast<std::size_t>(member) * each;
    if (at != source(member, offset)) copy_bytes(at, source(member, offset), each);  // the own part may be there already
  };
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      const Partition partition = Partition::of_all_reduce(operation.count, n);
      for (int slice = 0; slice < n; ++slice) {
        const SliceRange range = partition.slice(slice);
        if (range.size() != 0) reduce(operation, slice, range, to + range.begin * element, false);
      }
      break;
    }
    case OperationKind::reduce_scatter: {
      const std::size_t begin = static_cast<std::size_t>(rank) * operation.count;
      reduce(operation, rank, {begin, begin + operation.count}, to, false);
      break;
    }
    case OperationKind::all_gather:
      for (int member = 0; member < n; ++member) take(member, 0);
      break;
    case OperationKind::all_to_all:
      for (int member = 0; member < n; ++member) take(member, own);
      break;
    case OperationKind::broadcast:
      if (rank != operation.root) copy_bytes(to, source(operation.root, 0), each);
      break;
    case OperationKind::barrier: return;
    default: BALEEN_CHECK(false, "operation", static_cast<int>(operation.kind));
  }
  count_bytes(operation);
}

std::uint64_t SharedCollectives::offset_of(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  if (std::less<>()(at, heap_.data()) || std::greater_equal<>()(at, heap_.data() + heap_.size())) return 0;
  return 1 + static_cast<std::uint64_t>(at - heap_.data());
}

bool SharedCollectives::run_in_place(const Request& operation) {
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

void SharedCollectives::reduce(const Request& operation, int slice, SliceRange range, std::byte* to, bool to_everyone) {
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
void SharedCollectives::count_bytes(const Request& operation) const {
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
