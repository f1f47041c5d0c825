// What an algorithm needs from below: messages to and from other ranks, in order for each pair, several in flight.
//
// Messages are written and read in place, in slots of the transport, so that a sum goes from one slot straight into the next.
#pragma once

#include <cstddef>

namespace baleen {

// Between any two ranks: what all_to_all needs.
class PairTransport {
 public:
  virtual ~PairTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::size_t slot_bytes() const = 0;  // the longest message
  virtual int slots() const = 0;               // messages in flight to one neighbour, at least 2

  // A free slot towards `peer` (waits for one); `commit_to` sends what was written into it.
  virtual std::byte* slot_to(int peer) = 0;
  virtual void commit_to(int peer, std::size_t bytes) = 0;
  // The oldest message of `peer`, which must be of `bytes` (waits for it); `release_from` gives its slot back.
  virtual const std::byte* arrived_from(int peer, std::size_t bytes) = 0;
  virtual void release_from(int peer) = 0;
};

// Between neighbours: what a ring needs.
class RingTransport : public PairTransport {
 public:
  // A free slot towards rank+1 (waits for one); `commit` sends what was written into it.
  virtual std::byte* next_slot() = 0;
  virtual void commit(std::size_t bytes) = 0;
  // The oldest message of rank-1, which must be of `bytes` (waits for it); `release` gives its slot back.
  virtual const std::byte* arrived(std::size_t bytes) = 0;
  virtual void release() = 0;
};

}  // namespace baleen
