// A rank's end of a communicator in shared memory: messages to and from its members, and every way of waiting for them.
//
// A wait spins briefly, then yields, then sleeps on the rank's doorbell; while it lasts it watches the abort flags and its deadline. When
// the deadline passes the whole job is aborted, with a reason that names this communicator, the operation, this rank and the one waited
// for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/ring/transport.h"
#include "comm/shm/layout.h"

namespace baleen::shm {

class Port final : public RingTransport {
 public:
  // `members` are world ranks; `rank` is the index of this one among them. `sent` counts payload bytes.
  Port(std::shared_ptr<SharedRegion> region, std::uint32_t window, std::vector<int> members, int rank, std::string name,
       std::chrono::milliseconds timeout, std::atomic<std::uint64_t>& sent);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::size_t slot_bytes() const override { return shm::slot_bytes; }
  int slots() const override { return shm::slots; }
  std::byte* next_slot() override { return slot_to(next_); }
  void commit(std::size_t bytes) override { commit_to(next_, bytes); }
  const std::byte* arrived(std::size_t bytes) override { return arrived_from(previous_, bytes); }
  void release() override { release_from(previous_); }

  std::byte* slot_to(int peer) override;
  void commit_to(int peer, std::size_t bytes) override;
  const std::byte* arrived_from(int peer, std::size_t bytes) override;
  void release_from(int peer) override;
  // These give nullptr instead of waiting.
  std::byte* try_slot_to(int peer);
  const std::byte* try_arrived_from(int peer, std::size_t bytes);
  // Of a message that has not arrived: throws when the peer has gone on to a collective, for then it never will.
  void check_may_arrive(int peer);

  // What the messages from now on belong to; messages of anything else are a mismatch that aborts the job.
  void begin(const OperationTag& tag) { tag_ = tag; }

  // Notes. All members post one, then all wait for everybody's: afterwards each has seen all of that round's, and those of the round before
  // it may be overwritten. note_space() [note_bytes] is where the message of the next note goes; post() makes it seen.
  std::byte* note_space() { return note_at(rank_, posted_ + 1); }
  void post(const NoteHeader& note);
  // Waits for the note of the round that this rank has posted last.
  const NoteHeader& note_from(int peer);
  // More ranks than cores: one that spins keeps another from coming.
  bool crowded() const { return crowded_; }
  // Whether everybody's note of that round is there, or comes within the microseconds that a wait takes before it sleeps. Fails for no
  // reason.
  bool notes_come_soon();
  const std::byte* note_message(int peer) const { return note_at(peer, posted_); }
  void count_sent(std::size_t bytes) { sent_.fetch_add(bytes, std::memory_order_relaxed); }
  // Nobody goes on before everybody has come.
  void meet();

  // Makes this rank known to the others and waits for all of them; they must have come with the same signature.
  void join(std::uint64_t signature);

  // Throws Error(rank_failed) with the reason when this communicator or the job was aborted.
  void check_aborted() const;
  // That reason; empty while there is none.
  std::string abort_reason() const;
  // Aborts this communicator.
  void abort_group(const std::string& reason);
  // Aborts the job (unless it is aborted already) and throws.
  [[noreturn]] void fail(const std::string& reason);
  // Ends this rank's sleep, if it is asleep: something it should look at has happened.
  void wake();
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }

  // One wait. Use: for (Wait wait(port, peer);; wait.step()) { wait.arm(); if (ready) break; }
  class Wait {
   public:
    // `peer`: the member that will be blamed when the deadline passes; -1: no deadline, somebody else bounds this wait.
    Wait(Port& port, int peer) : port_(port), peer_(peer) {}
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;
    void arm();
    // Throws when aborted or too late.
    void step(std::chrono::microseconds longest_sleep = std::chrono::milliseconds(20));

   private:
    void check_deadline();
    Port& port_;
    int peer_;
    int steps_ = 0;
    bool sleeps_ = false;  // peers know: they ring
    std::uint32_t armed_ = 0;
    std::chrono::steady_clock::time_point last_look_;
    std::chrono::nanoseconds waited_{0};
  };

 private:
  struct Channel {
    ChannelControl* control = nullptr;
    std::byte* slots = nullptr;
    std::uint32_t messages = 0;  // pushed or popped by this side
  };
  static void ring(MemberControl& member);
  static void tell(MemberControl& member);
  std::byte* note_at(int peer, std::uint32_t note) const { return notes_[static_cast<std::size_t>(peer)] + note % 2 * note_bytes; }
  bool has_posted(int peer) const { return has_posted(peer, posted_); }
  bool has_posted(int peer, std::uint32_t note) const;
  void check_no_message(int peer);
  MemberControl& member(int index) const { return *controls_[static_cast<std::size_t>(index)]; }
  [[noreturn]] void fail_deadline(int peer, std::chrono::nanoseconds waited);
  [[noreturn]] void fail_mismatch(int peer, const MessageHeader& header, std::size_t bytes);
  [[noreturn]] void fail_mismatch(int peer, const OperationTag& theirs);

  std::shared_ptr<SharedRegion> region_;
  std::vector<int> members_;
  int rank_, next_, previous_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  bool crowded_ = false;
  int spins_ = 0, yields_ = 0;  // of a wait, before it sleeps
  std::atomic<std::uint64_t>& sent_;
  std::vector<MemberControl*> controls_;  // by member
  std::vector<std::byte*> notes_;         // by member: the first of its two
  std::uint32_t posted_ = 0;
  std::vector<Channel> outgoing_, incoming_;  // by member
  OperationTag tag_;
};

}  // namespace baleen::shm
