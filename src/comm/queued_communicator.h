// What backends that run operations one after the other share: the queue, and the thread that works it off.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "comm/operation.h"
#include "comm/ring/transport.h"

namespace baleen {

// Every operation becomes a Request for enqueue().
class QueuedCommunicator : public Communicator {
 protected:
  using Communicator::Communicator;
  virtual Event enqueue(const Request& request, Event after) = 0;

  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) final;
  Event do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) final;
  Event do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) final;
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) final;
  Event do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) final;
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) final;
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) final;
  Event do_barrier(Event after) final;
};

// A worker thread runs collectives by the algorithms of ring/ over a transport, and leaves sends and receives to the backend.
class WorkerCommunicator : public QueuedCommunicator {
 protected:
  using QueuedCommunicator::QueuedCommunicator;
  using Shared = std::shared_ptr<Operation>;

  // The last thing a constructor and the first that a destructor does: the worker calls the functions below. Operations that are still
  // pending are abandoned, which aborts this communicator for its other members.
  void start_worker(const std::string& prefix);
  void stop_worker();

  virtual RingTransport& transport() = 0;
  // The messages from here on belong to this operation. Throws the job's failure.
  virtual void begin(const OperationTag& tag) = 0;
  virtual void check_aborted() const = 0;
  // Runs a collective, or returns false on every member: then the algorithm of ring/ does.
  virtual bool run_collective_itself(const Request&) { return false; }
  // What the caller's thread may run itself when the queue is empty and nothing has to be awaited: run_at_once() takes a few microseconds;
  // where it returns false, run_collective_itself() is asked to go on with the same operation.
  virtual bool callers_own(const Request&) const { return false; }
  virtual bool run_at_once(const Request&) { return false; }
  // Runs `first` and, together with it, what next_point_to_point() gives; hands each to finish().
  virtual void run_point_to_point(Shared first) = 0;
  // The worker may be asleep over other sends and receives.
  virtual void wake() = 0;
  virtual int world_rank() const = 0;  // of this rank

  // The next operation if there is one already and it is a send or a receive.
  Shared next_point_to_point();
  void finish(const Shared& operation, std::optional<Error> failure = std::nullopt, bool ends_turn = false);
  // Counts the nanoseconds that it lives as busy.
  class BusyTime {
   public:
    explicit BusyTime(WorkerCommunicator& of) : of_(of), begin_(std::chrono::steady_clock::now()) {}
    ~BusyTime();
    BusyTime(const BusyTime&) = delete;
    BusyTime& operator=(const BusyTime&) = delete;

   private:
    WorkerCommunicator& of_;
    std::chrono::steady_clock::time_point begin_;
  };

 private:
  Event enqueue(const Request& request, Event after) final;
  bool take_turn();
  Event run_here(const Request& request, Event after);
  void end_turn();
  void work();
  Shared next_operation();
  void run_collective(const Shared& operation);
  void run(const Request& operation);
  void barrier();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Shared> queue_;
  std::size_t pending_ = 0;  // enqueued and not finished
  bool turn_taken_ = false;  // a thread, the worker or one that called, runs operations
  bool stopping_ = false;
  std::thread worker_;
};

// Runs `body` and returns how it failed, as the one exception type.
template <class Body>
std::optional<Error> attempt(Body&& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ExitCode::rank_failed, error.what());
  }
}

}  // namespace baleen
