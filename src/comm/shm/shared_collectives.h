// Collectives of ranks that can read each other's memory: short messages lie in notes, long ones in buffers of the heap.
//
// Nothing is handed on from rank to rank: each takes what it needs where it lies, and the owner of slice k adds it up over ranks k+1, k+2,
// …, k, which are the bits of the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/operation.h"
#include "comm/shm/port.h"

namespace baleen::shm {

class SharedCollectives {
 public:
  // `heap`: as every rank of the region maps it.
  SharedCollectives(Port& port, std::span<std::byte> heap);

  // Runs a collective and returns true; or, where some rank's buffers are in memory of its own and the message is long, returns false on
  // every rank, and nothing has been moved.
  bool run(const Request& operation);

  // Whether everything that `operation` moves goes into notes.
  bool fits_notes(const Request& operation) const;
  // Runs such an operation if the others come at once; otherwise returns false, and run() goes on with it.
  bool run_at_once(const Request& operation);

 private:
  void post_short(const Request& operation);
  void finish_short(const Request& operation);
  bool run_in_place(const Request& operation);
  std::uint64_t offset_of(const void* data) const;
  const std::byte* source(int member, std::size_t offset) const { return from_[static_cast<std::size_t>(member)] + offset; }
  // Elements [range) of what the members contribute, summed in slice k's order, to `to`; `others`: also there, at the same elements.
  void reduce(const Request& operation, int slice, SliceRange range, std::byte* to, bool to_everyone);
  void count_bytes(const Request& operation) const;

  Port& port_;
  std::span<std::byte> heap_;
  bool posted_ = false;                 // of the operation at hand, by a run_at_once() that gave up
  std::vector<const std::byte*> from_;  // by member, of the operation at hand
  std::vector<std::byte*> to_;
  std::vector<std::byte> partial_;  // sums on their way
};

}  // namespace baleen::shm
