// What a ring algorithm needs from below: messages to the next rank and from the previous one, in order, several in flight.
//
// Messages are written and read in place, in slots of the transport, so that a sum goes from one slot straight into the next.
#pragma once

#include <cstddef>

namespace baleen {

class RingTransport {
 public:
  virtual ~RingTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::size_t slot_bytes() const = 0;  // the longest message
  virtual int slots() const = 0;               // messages in flight to one neighbour, at least 2

  // A free slot towards rank+1 (waits for one); `commit` sends what was written into it.
  virtual std::byte* next_slot() = 0;
  virtual void commit(std::size_t bytes) = 0;
  // The oldest message of rank-1, which must be of `bytes` (waits for it); `release` gives its slot back.
  virtual const std::byte* arrived(std::size_t bytes) = 0;
  virtual void release() = 0;
};

}  // namespace baleen
