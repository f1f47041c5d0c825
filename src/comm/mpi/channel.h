// A communicator's queue as the thread that runs MPI sees it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/transfer.h"
#include "comm/operation.h"

namespace baleen::mpi {

// Time spent waiting. What passes while this process itself is stopped (a terminal's ^Z) is nobody's delay: one look counts for at most 100
// ms.
class Waited {
 public:
  std::chrono::nanoseconds look();

 private:
  std::optional<std::chrono::steady_clock::time_point> last_;
  std::chrono::nanoseconds total_{0};
};

// Operations start in the order of the queue, each after its `after`. Consecutive sends and receives are under way together, except those
// whose messages or buffers could meet; a collective waits for all before it.
class Channel {
 public:
  Channel(std::uint32_t id, std::string name, std::vector<int> members, const Link& link, std::atomic<std::uint64_t>& sent,
          std::atomic<std::uint64_t>& busy)
      : id_(id), name_(std::move(name)), members_(std::move(members)), link_(link), sent_(sent), busy_(busy) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  std::uint32_t id() const { return id_; }
  const std::string& name() const { return name_; }
  const std::vector<int>& members() const { return members_; }  // world ranks

  // From any thread.
  void enqueue(std::shared_ptr<Operation> operation);
  std::size_t pending() const;

  std::string failure() const;
  // Before the first operation; hears of operations from MPI's thread.
  void observe(CommObserver* observer) { observer_ = observer; }

  // The rest is for MPI's thread alone. Starts and finishes what can be; the failure that ended an operation, if one did.
  std::optional<Error> advance();
  // Operations are under way or could start.
  bool busy() const;
  // Everything unfinished, and whatever comes later, fails like this.
  void fail(const Error& error);
  // The operation that has been under way for longer than `limit`.
  const Operation* late(std::chrono::nanoseconds limit);
  std::uint64_t begun() const { return begun_; }
  OperationTag current() const;

 private:
  struct Active {
    std::shared_ptr<Operation> operation;
    std::unique_ptr<Transfer> transfer;  // once started
    Waited waited;
    std::chrono::steady_clock::time_point begin;
  };
  void admit();
  bool blocked(std::size_t index) const;
  bool advance_one(Active& active);
  void finish(const std::shared_ptr<Operation>& operation, std::optional<Error> failure);

  const std::uint32_t id_;
  const std::string name_;
  const std::vector<int> members_;
  const Link link_;
  std::atomic<std::uint64_t>& sent_;
  std::atomic<std::uint64_t>& busy_;
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::atomic<std::size_t> queued_{0};  // the queue's length, to be asked without the lock
  std::size_t pending_ = 0;             // enqueued and not finished
  std::deque<Active> active_;           // in the order of the queue
  std::deque<Active> abandoned_;        // started, failed: MPI may still touch their memory
  std::uint64_t begun_ = 0;
  std::atomic<CommObserver*> observer_{nullptr};
  std::optional<Error> failure_;  // written by MPI's thread, with the lock
};

}  // namespace baleen::mpi
