// Where everything lies in the shared region. Plain structs, valid when zero-filled, the same for every rank.
//
//   payload = table of window states | window 0 | window 1 | …       one window a create_communicator call, reused when all have left
//   window  = block of world rank 0 | block of world rank 1 | …
//   block   = MemberControl | two notes | channel to world rank 0 | channel to world rank 1 | …    written by its rank, read by the peers
//   channel = ChannelControl | slot 0 | slot 1 | …
//
// Because a window has room for every rank of the world, the groups of one call never meet in it whoever they are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/operation.h"
#include "launch/shared_region.h"

namespace baleen::shm {

inline constexpr std::size_t page = 4096;
inline constexpr std::size_t cache_line = 64;
// A channel's slots together stay inside an L2 cache; a slot is long enough that its bookkeeping (~100 ns) does not count.
inline constexpr int slots = 8;
inline constexpr std::size_t slot_bytes = std::size_t{32} << 10;
// Communicators alive at once; a mesh of five axes, their unions and a pipeline's links need about twenty.
inline constexpr std::uint32_t max_windows = 128;

struct MessageHeader {
  alignas(cache_line) std::uint64_t bytes;
  OperationTag tag;
};

struct ChannelControl {
  alignas(cache_line) std::atomic<std::uint32_t> pushed;  // messages, by the sender
  alignas(cache_line) std::atomic<std::uint32_t> popped;  // messages, by the receiver
  MessageHeader headers[slots];
};
static_assert(sizeof(ChannelControl) <= page);

// What a rank tells all others when it comes to a collective: which one, and where its buffers lie in the heap that all can reach. A note
// has room for a short message, too.
inline constexpr std::size_t note_bytes = std::size_t{16} << 10;
struct NoteHeader {
  OperationTag tag;
  // 1 + the offset in the heap; 0: in memory of its own. Equal and not 0: in place.
  std::uint64_t from, to;
};
// One line, so that a peer that sees the number has the header as well.
struct alignas(cache_line) Note {
  std::atomic<std::uint32_t> number;  // of the notes since the beginning; note i lies in place i % 2
  NoteHeader header;
};
static_assert(sizeof(Note) == cache_line);

struct MemberControl {
  // The member sleeps on it (futex); peers ring it when they have sent something or freed a slot while `sleeping`.
  alignas(cache_line) std::atomic<std::uint32_t> doorbell;
  std::atomic<std::uint32_t> sleeping;
  // Hash of the group and name it joined with; 0: not yet here.
  alignas(cache_line) std::atomic<std::uint64_t> signature;
  std::atomic<std::uint32_t> waiting_for;  // 1 + the member it is waiting for; 0: none
  Note notes[2];
  alignas(cache_line) AbortCell group_abort;  // of the whole communicator; the first member's is used
};
static_assert(sizeof(MemberControl) <= page);

struct alignas(cache_line) WindowState {
  std::atomic<std::uint32_t> generation;  // how often it has been emptied
  std::atomic<std::uint32_t> departed;    // ranks of the world that have left since
};

class Layout {
 public:
  explicit Layout(const SharedRegion& region);

  std::uint32_t windows() const { return windows_; }
  WindowState& state(std::uint32_t window) const;
  std::span<std::byte> window(std::uint32_t window) const;
  MemberControl& member(std::uint32_t window, int rank) const;
  std::byte* note(std::uint32_t window, int rank, int place) const;
  ChannelControl& channel(std::uint32_t window, int from, int to) const;
  std::byte* slot(std::uint32_t window, int from, int to, std::uint32_t slot) const;

 private:
  std::byte* block(std::uint32_t window, int rank) const;
  std::span<std::byte> payload_;
  std::size_t table_bytes_, block_bytes_, window_bytes_;
  std::uint32_t windows_;
};

}  // namespace baleen::shm
