// A communicator of the built-in backend: a queue, and a worker thread that runs it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "comm/shm/port.h"
#include "comm/shm/tenancy.h"

namespace baleen::shm {

class ShmCommunicator final : public Communicator {
 public:
  // Waits until all `members` (world ranks) have made theirs in the same window.
  ShmCommunicator(std::unique_ptr<Tenancy> tenancy, const std::vector<int>& members, int rank, const std::string& name,
                  std::uint64_t signature, std::chrono::milliseconds timeout);
  // Operations still pending are abandoned, which aborts this communicator for its other members.
  ~ShmCommunicator() override;

  void abort(const std::string& reason) override { port_.abort_group(reason); }
  std::string failure() const override { return port_.abort_reason(); }

 protected:
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override;
  Event do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) override;
  Event do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) override;
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) override;
  Event do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) override;
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_barrier(Event after) override;

 private:
  using Shared = std::shared_ptr<Operation>;
  struct Request {
    OperationKind kind;
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t count = 0;
    DType dtype = DType::u8;
    ReduceOp op = ReduceOp::sum;
    int root = 0;
  };
  Event enqueue(const Request& request, Event after);
  void work();
  Shared next_operation();
  Shared next_point_to_point();
  void run(const Operation& operation);
  void run_collective(const Shared& operation);
  void run_point_to_point(Shared first);
  void barrier();
  void finish(const Shared& operation, std::optional<Error> failure = std::nullopt);

  std::unique_ptr<Tenancy> tenancy_;  // ends last
  Port port_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Shared> queue_;
  std::size_t pending_ = 0;  // enqueued and not finished
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace baleen::shm
