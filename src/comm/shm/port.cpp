#include "comm/shm/port.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "comm/operation.h"
#include "comm/shm/futex.h"

namespace baleen::shm {
namespace {

using Clock = std::chrono::steady_clock;

// Some microseconds of spinning catch a peer that is about to come; then the core goes to whoever can use it. Where there are more ranks
// than cores, that is likely the peer itself, and it goes there before the rank sleeps.
struct Patience {
  int spins, yields;
};
Patience patience_of(bool crowded) {
  return crowded ? Patience{5, 40} : Patience{100, 40};
}
bool more_than_cores(int ranks) {
  const unsigned cores = std::thread::hardware_concurrency();
  return cores != 0 && static_cast<unsigned>(ranks) > cores;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Port::Port(std::shared_ptr<SharedRegion> region, std::uint32_t window, std::vector<int> members, int rank, std::string name,
           std::chrono::milliseconds timeout, std::atomic<std::uint64_t>& sent)
    : region_(std::move(region)),
      members_(std::move(members)),
      rank_(rank),
      next_((rank + 1) % size()),
      previous_((rank + size() - 1) % size()),
      name_(std::move(name)),
      timeout_(timeout),
      sent_(sent) {
  crowded_ = more_than_cores(region_->world_size());
  const Patience patience = patience_of(crowded_);
  spins_ = patience.spins;
  yields_ = patience.yields;
  const Layout layout(*region_);
  const int here = world_rank(rank);
  for (const int there : members_) {
    controls_.push_back(&layout.member(window, there));
    notes_.push_back(layout.note(window, there, 0));
    outgoing_.push_back({&layout.channel(window, here, there), layout.slot(window, here, there, 0)});
    incoming_.push_back({&layout.channel(window, there, here), layout.slot(window, there, here, 0)});
  }
}

std::byte* Port::try_slot_to(int peer) {
  const Channel& channel = outgoing_[static_cast<std::size_t>(peer)];
  const std::uint32_t in_flight = channel.messages - channel.control->popped.load(std::memory_order_seq_cst);
  if (in_flight >= static_cast<std::uint32_t>(shm::slots)) return nullptr;
  return channel.slots + channel.messages % shm::slots * shm::slot_bytes;
}

std::byte* Port::slot_to(int peer) {
  if (std::byte* slot = try_slot_to(peer)) return slot;
  for (Wait wait(*this, peer);; wait.step()) {
    wait.arm();
    if (std::byte* slot = try_slot_to(peer)) return slot;
  }
}

void Port::commit_to(int peer, std::size_t bytes) {
  Channel& channel = outgoing_[static_cast<std::size_t>(peer)];
  MessageHeader& header = channel.control->headers[channel.messages % shm::slots];
  header.bytes = bytes;
  header.tag = tag_;
  sent_.fetch_add(bytes, std::memory_order_relaxed);
  channel.control->pushed.store(++channel.messages, std::memory_order_seq_cst);
  tell(member(peer));
}

const std::byte* Port::try_arrived_from(int peer, std::size_t bytes) {
  const Channel& channel = incoming_[static_cast<std::size_t>(peer)];
  if (channel.control->pushed.load(std::memory_order_seq_cst) == channel.messages) return nullptr;
  const std::uint32_t slot = channel.messages % shm::slots;
  const MessageHeader& header = channel.control->headers[slot];
  if (header.bytes != bytes || header.tag != tag_) fail_mismatch(peer, header, bytes);
  return channel.slots + slot * shm::slot_bytes;
}

const std::byte* Port::arrived_from(int peer, std::size_t bytes) {
  if (const std::byte* slot = try_arrived_from(peer, bytes)) return slot;
  for (Wait wait(*this, peer);; wait.step()) {
    wait.arm();
    if (const std::byte* slot = try_arrived_from(peer, bytes)) return slot;
  }
}

void Port::release_from(int peer) {
  Channel& channel = incoming_[static_cast<std::size_t>(peer)];
  channel.control->popped.store(++channel.messages, std::memory_order_seq_cst);
  tell(member(peer));
}

void Port::post(const NoteHeader& header) {
  Note& note = member(rank_).notes[++posted_ % 2];
  note.header = header;
  note.number.store(posted_, std::memory_order_seq_cst);
  for (int peer = 0; peer < size(); ++peer)
    if (peer != rank_) tell(member(peer));
}

// Whoever waits for note i finds that or note i - 2 in its place: note i + 2 needs its own note i + 1.
bool Port::has_posted(int peer, std::uint32_t note) const {
  return member(peer).notes[note % 2].number.load(std::memory_order_seq_cst) == note;
}

bool Port::notes_come_soon() {
  int steps = 0;
  Clock::time_point begin;
  for (int peer = next_; peer != rank_; peer = (peer + 1) % size()) {
    for (; !has_posted(peer); ++steps) {
      if (steps < spins_) {
        relax();
        continue;
      }
      if (steps == spins_) begin = Clock::now();
      // To yield to somebody who computes takes long.
      if (steps == spins_ + yields_ || Clock::now() - begin > std::chrono::microseconds(50)) return false;
      sched_yield();
    }
  }
  return true;
}

const NoteHeader& Port::note_from(int peer) {
  if (!has_posted(peer)) {
    for (Wait wait(*this, peer);; wait.step()) {
      wait.arm();
      if (has_posted(peer)) break;
      check_no_message(peer);
    }
  }
  const NoteHeader& note = member(peer).notes[posted_ % 2].header;
  if (note.tag != tag_) fail_mismatch(peer, note.tag);
  return note;
}

// A peer that sends a message where a note is awaited runs something else: what it sent before, this rank has taken, and what it will send
// comes after its note.
void Port::check_no_message(int peer) {
  const Channel& channel = incoming_[static_cast<std::size_t>(peer)];
  if (channel.control->pushed.load(std::memory_order_acquire) == channel.messages || has_posted(peer)) return;
  fail_mismatch(peer, channel.control->headers[channel.messages % shm::slots].tag);
}

void Port::check_may_arrive(int peer) {
  const Channel& channel = incoming_[static_cast<std::size_t>(peer)];
  if (!has_posted(peer, posted_ + 1) || channel.control->pushed.load(std::memory_order_acquire) != channel.messages) return;
  fail_mismatch(peer, member(peer).notes[(posted_ + 1) % 2].header.tag);
}

void Port::meet() {
  post({tag_, 0, 0});
  for (int step = 1; step < size(); ++step) note_from((rank_ + step) % size());
}

void Port::join(std::uint64_t signature) {
  begin({static_cast<std::uint8_t>(OperationKind::create)});
  member(rank_).signature.store(signature, std::memory_order_release);
  for (int peer = 0; peer < size(); ++peer) ring(member(peer));
  for (int peer = 0; peer < size(); ++peer) {
    for (Wait wait(*this, peer);; wait.step()) {
      wait.arm();
      const std::uint64_t theirs = member(peer).signature.load(std::memory_order_acquire);
      if (theirs == signature) break;
      if (theirs != 0)
        fail(fmt::format("communicator '{}': ranks {} and {} came with different groups or names", name_, world_rank(rank_),
                         world_rank(peer)));
    }
  }
}

std::string Port::abort_reason() const {
  if (region_->abort_cell().raised()) return region_->abort_cell().reason();
  if (member(0).group_abort.raised()) return member(0).group_abort.reason();
  return "";
}

void Port::check_aborted() const {
  if (!region_->abort_cell().raised() && !member(0).group_abort.raised()) return;
  throw Error(ExitCode::rank_failed, abort_reason(),
              fmt::format("rank {}, communicator '{}', {}", world_rank(rank_), name_, describe(tag_)),
              "look for the first failure named above; the run goes on from its last checkpoint when started again");
}

void Port::abort_group(const std::string& reason) {
  member(0).group_abort.raise(reason);
  for (int peer = 0; peer < size(); ++peer) ring(member(peer));
}

void Port::fail(const std::string& reason) {
  region_->abort_cell().raise(reason);
  for (int peer = 0; peer < size(); ++peer) ring(member(peer));
  check_aborted();
  throw Error(ExitCode::rank_failed, reason);  // not reached: the cell is raised
}

void Port::wake() {
  ring(member(rank_));
}

void Port::ring(MemberControl& member) {
  member.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (member.sleeping.load(std::memory_order_seq_cst) != 0) futex_wake(member.doorbell);
}

// After a message or a note was stored. Pairs with Wait::step: either who waits looks again after it has said that it will sleep and finds
// what was stored, or we see that it sleeps. Both sides store, then load, in sequentially consistent order. Nothing is written while nobody
// sleeps.
void Port::tell(MemberControl& member) {
  if (member.sleeping.load(std::memory_order_seq_cst) != 0) ring(member);
}

void Port::fail_deadline(int peer, std::chrono::nanoseconds waited) {
  std::string reason = fmt::format("communicator '{}': {} on rank {} waited {:.1f} s for rank {}", name_, describe(tag_), world_rank(rank_),
                                   std::chrono::duration<double>(waited).count(), world_rank(peer));
  // The peer may be innocent: follow whom it waits for itself to the one that waits for nobody here.
  std::vector<int> seen{rank_, peer};
  while (true) {
    const int then = static_cast<int>(member(seen.back()).waiting_for.load(std::memory_order_relaxed)) - 1;
    if (then < 0 || then >= size() || std::find(seen.begin(), seen.end(), then) != seen.end()) break;
    reason += fmt::format(", which waits for rank {}", world_rank(then));
    seen.push_back(then);
  }
  if (member(seen.back()).waiting_for.load(std::memory_order_relaxed) == 0)
    reason += fmt::format("; rank {} is not in this communicator's operations: stopped, dead or busy elsewhere", world_rank(seen.back()));
  fail(reason);
}

void Port::fail_mismatch(int peer, const MessageHeader& header, std::size_t bytes) {
  fail(fmt::format("communicator '{}': rank {} runs {} while rank {} runs {} ({} and {} bytes in one message)", name_, world_rank(rank_),
                   describe(tag_), world_rank(peer), describe(header.tag), bytes, header.bytes));
}

void Port::fail_mismatch(int peer, const OperationTag& theirs) {
  fail(fmt::format("communicator '{}': rank {} runs {} while rank {} runs {}", name_, world_rank(rank_), describe(tag_), world_rank(peer),
                   describe(theirs)));
}

Port::Wait::~Wait() {
  MemberControl& me = port_.member(port_.rank_);
  if (sleeps_) me.sleeping.store(0, std::memory_order_relaxed);
  if (steps_ > port_.spins_) me.waiting_for.store(0, std::memory_order_relaxed);
}

void Port::Wait::arm() {
  armed_ = port_.member(port_.rank_).doorbell.load(std::memory_order_seq_cst);
}

void Port::Wait::step(std::chrono::microseconds longest_sleep) {
  ++steps_;
  if (steps_ <= port_.spins_) return relax();
  MemberControl& me = port_.member(port_.rank_);
  if (steps_ == port_.spins_ + 1) {
    me.waiting_for.store(static_cast<std::uint32_t>(peer_ + 1), std::memory_order_relaxed);
    last_look_ = Clock::now();
  }
  port_.check_aborted();
  check_deadline();
  if (steps_ <= port_.spins_ + port_.yields_) {
    sched_yield();
    return;
  }
  if (sleeps_) {
    futex_wait(me.doorbell, armed_, longest_sleep);
  } else {
    sleeps_ = true;
    me.sleeping.store(1, std::memory_order_seq_cst);  // the caller arms and looks once more
  }
}

// Time in which this process was itself stopped (a terminal's ^Z, a suspended laptop) is nobody's delay: one look counts for at most 100
// ms.
void Port::Wait::check_deadline() {
  const Clock::time_point now = Clock::now();
  waited_ += std::min<std::chrono::nanoseconds>(now - last_look_, std::chrono::milliseconds(100));
  last_look_ = now;
  if (peer_ >= 0 && waited_ > port_.timeout_) port_.fail_deadline(peer_, waited_);
}

}  // namespace baleen::shm
