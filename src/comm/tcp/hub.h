// A rank's connections to all others: one socket a peer, one thread that reads them all and hands what comes to the communicators.
//
// A message is a header and its bytes. It goes out at once as far as the socket takes it; the rest, and everything behind it, waits in
// memory for the thread. What comes is kept until it is asked for. Nothing is encrypted or signed once a connection has proved itself.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "comm/operation.h"

namespace baleen::tcp {

// The longest message of a collective, which sends in pieces; sends and receives are one message each.
inline constexpr std::size_t piece_bytes = std::size_t{256} << 10;

struct Message {
  OperationTag tag;
  std::vector<std::byte> bytes;
};

class Hub {
 public:
  // `peers`: a connected, non-blocking socket to each rank; none at this rank's own place.
  Hub(int rank, std::vector<Descriptor> peers);
  // Sends what is still waiting, for a while.
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Any thread may call these. Communicator 0 is the world.
  void send(int peer, std::uint32_t communicator, const OperationTag& tag, const void* bytes, std::size_t count);
  // The oldest message of `peer` for this communicator, which stays until pop(); nullptr when there is none yet.
  const Message* front(int peer, std::uint32_t communicator);
  void pop(int peer, std::uint32_t communicator);
  // Returns when something has come, after wake(), or after `limit`. `seen`: of the latest arrivals() before looking.
  void wait(std::uint64_t seen, std::chrono::milliseconds limit);
  std::uint64_t arrivals() const { return arrivals_.load(std::memory_order_acquire); }
  void wake();

  // Fails one communicator, or all (0), on every rank.
  void abort(std::uint32_t communicator, const std::string& reason);
  // Why; empty while it can be used.
  std::string failure(std::uint32_t communicator);
  // The peer's connection has ended: no more will come.
  bool gone(int peer);

 private:
  struct Header {
    bool possible() const;
    std::uint32_t magic = 0x4d4c4142, communicator = 0, kind = 0, unused = 0;
    OperationTag tag;
    std::uint64_t bytes = 0;
  };
  struct Peer {
    Descriptor socket;
    std::deque<std::vector<std::byte>> outgoing;
    std::size_t sent = 0;  // of the first
    Header header;
    std::size_t header_bytes = 0, body_bytes = 0;
    std::vector<std::byte> body;
    bool gone = false;
  };
  void run();
  void serve();
  void put(Peer& peer, std::vector<std::byte> bytes);
  void write_to(Peer& peer);
  bool read_from(int rank, Peer& peer);
  void deliver(int rank, Peer& peer);
  void leave(Peer& peer);
  void end_all(const char* why) noexcept;

  const int rank_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::atomic<std::uint64_t> arrivals_{0};
  std::vector<Peer> peers_;
  std::map<std::pair<std::uint32_t, int>, std::deque<Message>> inbox_;
  std::map<std::uint32_t, std::string> failures_;
  bool stopping_ = false;
  Descriptor wake_;  // an eventfd: the thread has something to send
  std::thread thread_;
};

}  // namespace baleen::tcp
