#include "comm/shm/shm_communicator.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <utility>

#include "comm/ring/all_gather.h"
#include "comm/ring/all_to_all.h"
#include "comm/ring/broadcast.h"
#include "comm/ring/reduce_scatter.h"
#include "comm/shm/point_to_point.h"

namespace baleen::shm {
namespace {

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

// Adds the time it lives to a counter.
class BusyTime {
 public:
  explicit BusyTime(std::atomic<std::uint64_t>& total) : total_(total), begin_(std::chrono::steady_clock::now()) {}
  ~BusyTime() {
    const auto spent = std::chrono::steady_clock::now() - begin_;
    total_.fetch_add(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count()),
                     std::memory_order_relaxed);
  }
  BusyTime(const BusyTime&) = delete;
  BusyTime& operator=(const BusyTime&) = delete;

 private:
  std::atomic<std::uint64_t>& total_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace

ShmCommunicator::ShmCommunicator(std::unique_ptr<Tenancy> tenancy, const std::vector<int>& members, int rank, const std::string& name,
                                 std::uint64_t signature, std::chrono::milliseconds timeout)
    : Communicator(rank, static_cast<int>(members.size()), name),
      tenancy_(std::move(tenancy)),
      port_(tenancy_->region(), tenancy_->window(), members, rank, name, timeout, bytes_sent_) {
  port_.join(signature);
  // The worker takes no signals: they belong to the thread that holds the StopSignal.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  worker_ = std::thread([this] { work(); });
  pthread_setname_np(worker_.native_handle(), ("comm " + name).substr(0, 15).c_str());
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

ShmCommunicator::~ShmCommunicator() {
  std::size_t abandoned = 0;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    abandoned = pending_;
  }
  if (abandoned != 0)
    abort(fmt::format("rank {} closed communicator '{}' with {} operations pending", port_.world_rank(rank()), name(), abandoned));
  changed_.notify_all();
  worker_.join();
}

Event ShmCommunicator::do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  return enqueue({OperationKind::all_reduce, send, recv, count, dtype, op}, std::move(after));
}

Event ShmCommunicator::do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  return enqueue({OperationKind::reduce_scatter, send, recv, recv_count, dtype, op}, std::move(after));
}

Event ShmCommunicator::do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  return enqueue({OperationKind::all_gather, send, recv, send_count, dtype}, std::move(after));
}

Event ShmCommunicator::do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  return enqueue({OperationKind::broadcast, buffer, buffer, count, dtype, ReduceOp::sum, root}, std::move(after));
}

Event ShmCommunicator::do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  return enqueue({OperationKind::all_to_all, send, recv, count_each, dtype}, std::move(after));
}

Event ShmCommunicator::do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return enqueue({OperationKind::send, buffer, nullptr, count, dtype, ReduceOp::sum, peer}, std::move(after));
}

Event ShmCommunicator::do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return enqueue({OperationKind::recv, nullptr, buffer, count, dtype, ReduceOp::sum, peer}, std::move(after));
}

Event ShmCommunicator::do_barrier(Event after) {
  return enqueue({OperationKind::barrier}, std::move(after));
}

Event ShmCommunicator::enqueue(const Request& request, Event after) {
  auto operation = std::make_shared<Operation>();
  operation->kind = request.kind;
  operation->from = request.from;
  operation->to = request.to;
  operation->count = request.count;
  operation->dtype = request.dtype;
  operation->op = request.op;
  operation->root = request.root;
  operation->after = std::move(after);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    ++pending_;
  }
  changed_.notify_one();
  if (operation->point_to_point()) port_.wake();  // the worker may be asleep over other sends and receives
  return Event(operation);
}

void ShmCommunicator::work() {
  while (Shared operation = next_operation()) {
    if (operation->point_to_point())
      run_point_to_point(std::move(operation));
    else
      run_collective(operation);
  }
}

// Waits for the next operation; nullptr when the communicator closes and nothing is left.
ShmCommunicator::Shared ShmCommunicator::next_operation() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
  if (queue_.empty()) return nullptr;
  Shared out = std::move(queue_.front());
  queue_.pop_front();
  return out;
}

// The next operation if there is one already and it is a send or a receive.
ShmCommunicator::Shared ShmCommunicator::next_point_to_point() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || !queue_.front()->point_to_point()) return nullptr;
  Shared out = std::move(queue_.front());
  queue_.pop_front();
  return out;
}

void ShmCommunicator::finish(const Shared& operation, std::optional<Error> failure) {
  {
    const std::lock_guard lock(mutex_);
    --pending_;  // before the event: who has waited for everything may close the communicator at once
  }
  operation->after = Event();  // lets go of what it waited for
  if (observer_ != nullptr && !failure)
    observer_->on_operation(name(), operation_name(operation->kind), operation->bytes(), operation->begun, std::chrono::steady_clock::now());
  operation->complete(std::move(failure));
}

void ShmCommunicator::run_collective(const Shared& operation) {
  port_.begin(operation->tag());
  auto failure = attempt([&] {
    operation->after.wait();
    port_.check_aborted();
    operation->begun = std::chrono::steady_clock::now();
    const BusyTime busy(busy_nanoseconds_);
    run(*operation);
  });
  // What stops this rank here stops the others, who wait for it.
  if (failure) port_.abort_group(failure->what_is_wrong());
  finish(operation, std::move(failure));
}

void ShmCommunicator::run(const Operation& operation) {
  const std::size_t element = dtype_bytes(operation.dtype);
  const auto* from = static_cast<const std::byte*>(operation.from);
  auto* to = static_cast<std::byte*>(operation.to);
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      const Partition partition = Partition::of_all_reduce(operation.count, size());
      std::byte* own = to == nullptr ? nullptr : to + partition.slice(rank()).begin * element;
      ring_reduce_scatter(port_, from, own, partition, reducer_for(operation.dtype, operation.op));
      ring_all_gather(port_, own, to, partition, element);
      return;
    }
    case OperationKind::reduce_scatter:
      return ring_reduce_scatter(port_, from, to, Partition::of_equal_parts(operation.count, size()),
                                 reducer_for(operation.dtype, operation.op));
    case OperationKind::all_gather:
      return ring_all_gather(port_, from, to, Partition::of_equal_parts(operation.count, size()), element);
    case OperationKind::broadcast:
      return ring_broadcast(port_, to, operation.bytes(), operation.root);
    case OperationKind::all_to_all:
      return pairwise_all_to_all(port_, from, to, operation.bytes());
    case OperationKind::barrier:
      return barrier();
    case OperationKind::none:
    case OperationKind::create:
    case OperationKind::send:
    case OperationKind::recv:
      break;
  }
  BALEEN_CHECK(false, "operation", static_cast<int>(operation.kind));
}

// Dissemination: in round j every rank tells rank + 2^j; after ⌈log2 n⌉ rounds each has heard, directly or not, of all.
// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988.
void ShmCommunicator::barrier() {
  for (int distance = 1; distance < size(); distance *= 2) {
    const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
    port_.slot_to(to);
    port_.commit_to(to, 0);
    port_.arrived_from(from, 0);
    port_.release_from(from);
  }
}

void ShmCommunicator::run_point_to_point(Shared first) {
  PointToPoint transfers(port_);
  transfers.add(std::move(first));
  auto failure = attempt([&] {
    const BusyTime busy(busy_nanoseconds_);
    while (!transfers.empty()) {
      while (Shared more = next_point_to_point()) transfers.add(std::move(more));
      for (const Shared& complete : transfers.advance()) finish(complete);
      if (!transfers.empty() && !transfers.moved()) transfers.idle();
    }
  });
  if (!failure) return;
  port_.abort_group(failure->what_is_wrong());
  for (const Shared& unfinished : transfers.take_all()) finish(unfinished, failure);
}

}  // namespace baleen::shm
