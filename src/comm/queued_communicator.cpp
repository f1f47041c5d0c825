#include "comm/queued_communicator.h"

#include <fmt/format.h>

#include <utility>

#include "comm/ring/all_gather.h"
#include "comm/ring/all_to_all.h"
#include "comm/ring/broadcast.h"
#include "comm/ring/reduce_scatter.h"
#include "launch/background_thread.h"

namespace baleen {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t nanoseconds(Clock::duration duration) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

}  // namespace

Event QueuedCommunicator::do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  return enqueue({OperationKind::all_reduce, send, recv, count, dtype, op, 0}, std::move(after));
}
Event QueuedCommunicator::do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  return enqueue({OperationKind::reduce_scatter, send, recv, recv_count, dtype, op, 0}, std::move(after));
}
Event QueuedCommunicator::do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  return enqueue({OperationKind::all_gather, send, recv, send_count, dtype, ReduceOp::sum, 0}, std::move(after));
}
Event QueuedCommunicator::do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  return enqueue({OperationKind::broadcast, buffer, buffer, count, dtype, ReduceOp::sum, root}, std::move(after));
}
Event QueuedCommunicator::do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  return enqueue({OperationKind::all_to_all, send, recv, count_each, dtype, ReduceOp::sum, 0}, std::move(after));
}
Event QueuedCommunicator::do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return enqueue({OperationKind::send, buffer, nullptr, count, dtype, ReduceOp::sum, peer}, std::move(after));
}
Event QueuedCommunicator::do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return enqueue({OperationKind::recv, nullptr, buffer, count, dtype, ReduceOp::sum, peer}, std::move(after));
}
Event QueuedCommunicator::do_barrier(Event after) {
  return enqueue({OperationKind::barrier, nullptr, nullptr, 0, DType::u8, ReduceOp::sum, 0}, std::move(after));
}

WorkerCommunicator::BusyTime::~BusyTime() {
  of_.busy_nanoseconds_.fetch_add(nanoseconds(Clock::now() - begin_), std::memory_order_relaxed);
}

void WorkerCommunicator::start_worker(const std::string& prefix) {
  worker_ = start_background(prefix + " " + name(), [this] { work(); });
}

void WorkerCommunicator::stop_worker() {
  std::size_t abandoned = 0;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    abandoned = pending_;
  }
  if (abandoned != 0) abort(fmt::format("rank {} closed communicator '{}' with {} operations pending", world_rank(), name(), abandoned));
  changed_.notify_all();
  worker_.join();
}

Event WorkerCommunicator::enqueue(const Request& request, Event after) {
  if (callers_own(request) && after.ready() && take_turn()) return run_here(request, std::move(after));
  auto operation = std::make_shared<Operation>(request, std::move(after));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    ++pending_;
  }
  changed_.notify_one();
  if (operation->point_to_point()) wake();
  return Event(std::move(operation));
}

// Whether it is the caller's: nothing is under way, and nothing waits that was enqueued before.
bool WorkerCommunicator::take_turn() {
  const std::lock_guard lock(mutex_);
  if (turn_taken_ || stopping_ || !queue_.empty()) return false;
  return turn_taken_ = true;
}

void WorkerCommunicator::end_turn() {
  const std::lock_guard lock(mutex_);
  turn_taken_ = false;
  if (!queue_.empty()) changed_.notify_one();
}

// The hand-over to the worker and back takes longer than a short operation whose members all come at once. For those that come late the
// worker waits, so that the caller is never held up for long, nor two callers that enqueue on two communicators in different orders for
// ever.
Event WorkerCommunicator::run_here(const Request& request, Event after) {
  bool complete = false;
  const Clock::time_point start = Clock::now();
  auto failure = attempt([&] {
    after.wait();  // ready: returns at once, or throws the failure it stands for
    begin(request.tag());
    check_aborted();
    complete = run_at_once(request);
  });
  const Clock::time_point end = Clock::now();
  busy_nanoseconds_.fetch_add(nanoseconds(end - start), std::memory_order_relaxed);
  if (complete) {
    end_turn();
    if (observer_ != nullptr) observer_->on_operation(name(), operation_name(request.kind), request.bytes(), start, end);
    return Event();
  }
  auto operation = std::make_shared<Operation>(request, Event());
  if (failure) {
    abort(failure->what_is_wrong());
    end_turn();
    operation->complete(std::move(failure));
  } else {
    const std::lock_guard lock(mutex_);
    queue_.push_front(operation);
    ++pending_;
    turn_taken_ = false;
    changed_.notify_one();
  }
  return Event(std::move(operation));
}

void WorkerCommunicator::work() {
  while (Shared operation = next_operation()) {
    if (operation->point_to_point()) {
      run_point_to_point(std::move(operation));
      end_turn();
    } else {
      run_collective(operation);
    }
  }
}

// Waits for the next operation; nullptr when the communicator closes and nothing is left.
WorkerCommunicator::Shared WorkerCommunicator::next_operation() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || (!queue_.empty() && !turn_taken_); });
  if (queue_.empty()) return nullptr;
  turn_taken_ = true;
  Shared out = std::move(queue_.front());
  queue_.pop_front();
  return out;
}

WorkerCommunicator::Shared WorkerCommunicator::next_point_to_point() {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || !queue_.front()->point_to_point()) return nullptr;
  Shared out = std::move(queue_.front());
  queue_.pop_front();
  return out;
}

void WorkerCommunicator::finish(const Shared& operation, std::optional<Error> failure, bool ends_turn) {
  operation->after = Event();  // lets go of what it waited for
  if (observer_ != nullptr && !failure)
    observer_->on_operation(name(), operation_name(operation->kind), operation->bytes(), operation->begun, Clock::now());
  // Together: who has waited for everything may close the communicator at once, and what runs next does not complete before this.
  const std::lock_guard lock(mutex_);
  --pending_;
  if (ends_turn) turn_taken_ = false;
  operation->complete(std::move(failure));
}

void WorkerCommunicator::run_collective(const Shared& operation) {
  begin(operation->tag());
  auto failure = attempt([&] {
    operation->after.wait();
    check_aborted();
    operation->begun = Clock::now();
    const BusyTime busy(*this);
    run(*operation);
  });
  // What stops this rank here stops the others, who wait for it.
  if (failure) abort(failure->what_is_wrong());
  finish(operation, std::move(failure), true);
}

void WorkerCommunicator::run(const Request& operation) {
  if (run_collective_itself(operation)) return;
  RingTransport& ring = transport();
  const std::size_t element = dtype_bytes(operation.dtype);
  const auto* from = static_cast<const std::byte*>(operation.from);
  auto* to = static_cast<std::byte*>(operation.to);
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      const Partition partition = Partition::of_all_reduce(operation.count, size());
      std::byte* own = to == nullptr ? nullptr : to + partition.slice(rank()).begin * element;
      ring_reduce_scatter(ring, from, own, partition, reducer_for(operation.dtype, operation.op));
      return ring_all_gather(ring, own, to, partition, element);
    }
    case OperationKind::reduce_scatter:
      return ring_reduce_scatter(ring, from, to, Partition::of_equal_parts(operation.count, size()),
                                 reducer_for(operation.dtype, operation.op));
    case OperationKind::all_gather: return ring_all_gather(ring, from, to, Partition::of_equal_parts(operation.count, size()), element);
    case OperationKind::broadcast: return ring_broadcast(ring, to, operation.bytes(), operation.root);
    case OperationKind::all_to_all: return pairwise_all_to_all(ring, from, to, operation.bytes());
    case OperationKind::barrier: return barrier();
    case OperationKind::none:
    case OperationKind::create:
    case OperationKind::send:
    case OperationKind::recv: break;
  }
  BALEEN_CHECK(false, "operation", static_cast<int>(operation.kind));
}

// Dissemination: in round j every rank tells rank + 2^j; after ⌈log2 n⌉ rounds each has heard, directly or not, of all.
// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988.
void WorkerCommunicator::barrier() {
  RingTransport& ring = transport();
  for (int distance = 1; distance < size(); distance *= 2) {
    const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
    ring.slot_to(to);
    ring.commit_to(to, 0);
    ring.arrived_from(from, 0);
    ring.release_from(from);
  }
}

}  // namespace baleen
