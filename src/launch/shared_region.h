// Memory that all ranks of a job on one machine share, and the job's abort flag inside it.
//
// The region is a file in memory (memory_file.h): it has no name, so no run can leave anything in /dev/shm, and it lives exactly as long as
// a process holds it. It is sparse: a page costs memory only once somebody has written to it, so its size is generous.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/descriptor.h"

namespace baleen {

// A flag in shared memory that is raised once and tells why. Valid when zero-filled; any thread of any process may call any method.
class AbortCell {
 public:
  // The first call wins; later ones change nothing. A reason too long is cut.
  void raise(const std::string& reason);
  bool raised() const { return state_.load(std::memory_order_acquire) != clear; }
  // Empty until raised.
  std::string reason() const;

 private:
  enum State : std::uint32_t { clear = 0, writing = 1, written = 2 };
  std::atomic<std::uint32_t> state_;
  char reason_[1020];
};

class SharedRegion {
 public:
  // A new region for `world_size` ranks. With `keep_descriptor` the file stays open (close-on-exec) to be handed to other processes.
  // Throws Error(out_of_memory) when the machine refuses.
  static std::shared_ptr<SharedRegion> create(int world_size, bool keep_descriptor = false);
  // Maps a region another process made, and closes the descriptor. Throws Error(rank_failed) when it is no region for `world_size` ranks.
  static std::shared_ptr<SharedRegion> attach(Descriptor file, int world_size);

  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  int world_size() const;
  // -1 unless kept.
  int descriptor() const { return file_.get(); }
  void close_descriptor() { file_.reset(); }
  // Raised when the job cannot go on: by the launcher for a dead rank, by a rank for a peer that does not come.
  AbortCell& abort_cell() const;
  // What communicators live in; starts at a page boundary, zero-filled at first.
  std::span<std::byte> payload() const;
  // Where ranks keep what the others read and write in place: rank r in the r-th of world_size() equal parts. Zero-filled at first. Empty
  // where this process has no address space for it.
  std::span<std::byte> heap() const { return heap_; }
  // Gives the pages of a range of the payload or the heap back to the system; it reads as zeros again. Page boundaries only.
  void discard(std::span<std::byte> range) const;

 private:
  struct Header;
  SharedRegion(Descriptor file, std::byte* base, std::size_t bytes) : file_(std::move(file)), base_(base), bytes_(bytes) {}
  void map_heap(int file, std::size_t bytes);
  Header& header() const;

  Descriptor file_;
  std::byte* base_;
  std::size_t bytes_;  // without the heap
  std::span<std::byte> heap_;
};

}  // namespace baleen
