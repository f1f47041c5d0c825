// A communicator over the hub's connections: the algorithms of comm/ring, a queue, and a worker thread that runs it. The same bits as the
// built-in backend on one machine.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/queued_communicator.h"
#include "comm/tcp/hub.h"

namespace baleen::tcp {

// A rank's end of a communicator: messages to and from its members, with deadlines.
class TcpPort final : public RingTransport {
 public:
  TcpPort(std::shared_ptr<Hub> hub, std::uint32_t id, std::vector<int> members, int rank, std::string name,
          std::chrono::milliseconds timeout, std::atomic<std::uint64_t>& sent);
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::size_t slot_bytes() const override { return piece_bytes; }
  int slots() const override { return 8; }
  std::byte* next_slot() override { return slot_to(next_); }
  void commit(std::size_t bytes) override { commit_to(next_, bytes); }
  const std::byte* arrived(std::size_t bytes) override { return arrived_from(previous_, bytes); }
  void release() override { release_from(previous_); }
  std::byte* slot_to(int) override { return slot_.data(); }
  void commit_to(int peer, std::size_t bytes) override { send(peer, slot_.data(), bytes); }
  const std::byte* arrived_from(int peer, std::size_t bytes) override;
  void release_from(int peer) override { hub_->pop(world_rank(peer), id_); }

  void begin(const OperationTag& tag) { tag_ = tag; }
  void send(int peer, const void* from, std::size_t bytes);
  // nullptr instead of waiting.
  const std::byte* try_arrived_from(int peer, std::size_t bytes);
  void join(std::uint64_t signature);
  void check_aborted() const;
  [[noreturn]] void fail_deadline(int peer, double seconds);
  void check_gone(int peer);
  Hub& hub() const { return *hub_; }
  std::uint32_t id() const { return id_; }
  int world_rank(int member) const { return members_[static_cast<std::size_t>(member)]; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  [[noreturn]] void fail(const std::string& reason);
  std::shared_ptr<Hub> hub_;
  std::uint32_t id_;
  std::vector<int> members_;
  int rank_, next_, previous_;
  std::string name_;
  std::chrono::milliseconds timeout_;
  std::atomic<std::uint64_t>& sent_;
  std::vector<std::byte> slot_;  // a message is copied when it is sent, so one is enough
  OperationTag tag_;
};

class TcpCommunicator final : public WorkerCommunicator {
 public:
  TcpCommunicator(std::shared_ptr<Hub> hub, std::uint32_t id, const std::vector<int>& members, int rank, const std::string& name,
                  std::chrono::milliseconds timeout);
  ~TcpCommunicator() override { stop_worker(); }
  void abort(const std::string& reason) override { port_.hub().abort(port_.id(), reason); }
  std::string failure() const override { return port_.hub().failure(port_.id()); }

 protected:
  RingTransport& transport() override { return port_; }
  void begin(const OperationTag& tag) override { port_.begin(tag); }
  void check_aborted() const override { port_.check_aborted(); }
  void run_point_to_point(Shared first) override;
  void wake() override { port_.hub().wake(); }
  int world_rank() const override { return port_.world_rank(rank()); }

 private:
  struct Transfer {
    Shared operation;
    bool started = false;  // what it waited for is there
  };
  bool advance(std::deque<Transfer>& active);
  bool advance_one(Transfer& transfer);

  TcpPort port_;
};

}  // namespace baleen::tcp
