#include "comm/tcp/tcp_communicator.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/ring/all_gather.h"
#include "comm/ring/all_to_all.h"
#include "comm/ring/broadcast.h"
#include "comm/ring/reduce_scatter.h"

namespace baleen::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Error as_error(std::exception_ptr caught) {
  try {
    std::rethrow_exception(std::move(caught));
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    return Error(ExitCode::rank_failed, error.what());
  }
}

struct Range {
  const std::byte* begin;
  std::size_t bytes;
  bool meets(const Range& other) const {
    return bytes != 0 && other.bytes != 0 && begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};
Range buffer_of(const Operation& operation) {
  return {static_cast<const std::byte*>(operation.kind == OperationKind::send ? operation.from : operation.to), operation.bytes()};
}

// Whether `later` must wait for `earlier`: messages of one pair keep their order, and so do buffers that meet.
bool must_follow(const Operation& later, const Operation& earlier) {
  if (later.kind == earlier.kind && later.root == earlier.root) return true;
  const bool writes = later.kind == OperationKind::recv || earlier.kind == OperationKind::recv;
  return writes && buffer_of(later).meets(buffer_of(earlier));
}

}  // namespace

TcpPort::TcpPort(std::shared_ptr<Hub> hub, std::uint32_t id, std::vector<int> members, int rank, std::string name, milliseconds timeout,
                 std::atomic<std::uint64_t>& sent)
    : hub_(std::move(hub)),
      id_(id),
      members_(std::move(members)),
      rank_(rank),
      next_((rank + 1) % size()),
      previous_((rank + size() - 1) % size()),
      name_(std::move(name)),
      timeout_(timeout),
      sent_(sent),
      slot_(slot_bytes()) {}

void TcpPort::send(int peer, const void* from, std::size_t bytes) {
  sent_.fetch_add(bytes, std::memory_order_relaxed);
  hub_->send(world_rank(peer), id_, tag_, from, bytes);
}

const std::byte* TcpPort::try_arrived_from(int peer, std::size_t bytes) {
  const Message* message = hub_->front(world_rank(peer), id_);
  if (message == nullptr) return nullptr;
  if (message->tag != tag_ || message->bytes.size() != bytes)
    fail(fmt::format("communicator '{}': rank {} runs {} while rank {} runs {} ({} and {} bytes in one message)", name_, world_rank(rank_),
                     describe(tag_), world_rank(peer), describe(message->tag), bytes, message->bytes.size()));
  static constexpr std::byte nothing{};
  return message->bytes.empty() ? &nothing : message->bytes.data();
}

const std::byte* TcpPort::arrived_from(int peer, std::size_t bytes) {
  const auto begin = Clock::now();
  while (true) {
    const std::uint64_t seen = hub_->arrivals();
    if (const std::byte* message = try_arrived_from(peer, bytes)) return message;
    check_aborted();
    check_gone(peer);
    const auto waited = Clock::now() - begin;
    if (waited > timeout_) fail_deadline(peer, std::chrono::duration<double>(waited).count());
    hub_->wait(seen, milliseconds(20));
  }
}

void TcpPort::join(std::uint64_t signature) {
  begin({static_cast<std::uint8_t>(OperationKind::create)});
  // To every rank of the world: one that this rank does not count as a member may count this one.
  for (int other = 0; other < hub_->size(); ++other)
    if (other != world_rank(rank_)) hub_->send(other, id_, tag_, &signature, sizeof signature);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, arrived_from(peer, sizeof theirs), sizeof theirs);
    release_from(peer);
    if (theirs != signature)
      fail(fmt::format("communicator '{}': ranks {} and {} came with different groups or names", name_, world_rank(rank_),
                       world_rank(peer)));
  }
}

void TcpPort::check_aborted() const {
  const std::string reason = hub_->failure(id_);
  if (!reason.empty())
    throw Error(ExitCode::rank_failed, reason, fmt::format("rank {}, communicator '{}', {}", world_rank(rank_), name_, describe(tag_)),
                "look for the first failure named above; the run goes on from its last checkpoint when started again");
}

// What a rank sent before it left can still be read, so this is asked after looking.
void TcpPort::check_gone(int peer) {
  if (hub_->gone(world_rank(peer)) && hub_->front(world_rank(peer), id_) == nullptr)
    fail(fmt::format("communicator '{}': {} on rank {} waits for rank {}, whose connection has ended: it died, or the network did", name_,
                     describe(tag_), world_rank(rank_), world_rank(peer)));
}

void TcpPort::fail_deadline(int peer, double seconds) {
  fail(fmt::format("communicator '{}': {} on rank {} waited {:.1f} s for rank {}", name_, describe(tag_), world_rank(rank_), seconds,
                   world_rank(peer)));
}

void TcpPort::fail(const std::string& reason) {
  hub_->abort(0, reason);
  check_aborted();
  throw Error(ExitCode::rank_failed, reason);  // not reached: the world is aborted
}

TcpCommunicator::TcpCommunicator(std::shared_ptr<Hub> hub, std::uint32_t id, const std::vector<int>& members, int rank,
                                 const std::string& name, milliseconds timeout)
    : Communicator(rank, static_cast<int>(members.size()), name), port_(std::move(hub), id, members, rank, name, timeout, bytes_sent_) {
  port_.join(group_signature(members, name, id));
  sigset_t all, previous;  // signals belong to the thread that holds the StopSignal
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  worker_ = std::thread([this] { work(); });
  pthread_setname_np(worker_.native_handle(), ("tcp " + name).substr(0, 15).c_str());
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}

TcpCommunicator::~TcpCommunicator() {
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

Event TcpCommunicator::do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  return enqueue(OperationKind::all_reduce, send, recv, count, dtype, op, 0, std::move(after));
}
Event TcpCommunicator::do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  return enqueue(OperationKind::reduce_scatter, send, recv, recv_count, dtype, op, 0, std::move(after));
}
Event TcpCommunicator::do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  return enqueue(OperationKind::all_gather, send, recv, send_count, dtype, ReduceOp::sum, 0, std::move(after));
}
Event TcpCommunicator::do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  return enqueue(OperationKind::broadcast, buffer, buffer, count, dtype, ReduceOp::sum, root, std::move(after));
}
Event TcpCommunicator::do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  return enqueue(OperationKind::all_to_all, send, recv, count_each, dtype, ReduceOp::sum, 0, std::move(after));
}
Event TcpCommunicator::do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return enqueue(OperationKind::send, buffer, nullptr, count, dtype, ReduceOp::sum, peer, std::move(after));
}
Event TcpCommunicator::do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return enqueue(OperationKind::recv, nullptr, buffer, count, dtype, ReduceOp::sum, peer, std::move(after));
}
Event TcpCommunicator::do_barrier(Event after) {
  return enqueue(OperationKind::barrier, nullptr, nullptr, 0, DType::u8, ReduceOp::sum, 0, std::move(after));
}

Event TcpCommunicator::enqueue(OperationKind kind, const void* from, void* to, std::size_t count, DType dtype, ReduceOp op, int root,
                               Event after) {
  auto operation = std::make_shared<Operation>();
  operation->kind = kind;
  operation->from = from;
  operation->to = to;
  operation->count = count;
  operation->dtype = dtype;
  operation->op = op;
  operation->root = root;
  operation->after = std::move(after);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    ++pending_;
  }
  changed_.notify_one();
  if (operation->point_to_point()) port_.hub().wake();  // the worker may wait for other messages
  return Event(std::move(operation));
}

// The next operation; nullptr when the communicator closes, or where one was not waited for and none, or none of that kind, is there.
TcpCommunicator::Shared TcpCommunicator::next_operation(bool wait, bool point_to_point) {
  std::unique_lock lock(mutex_);
  if (wait) changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
  if (queue_.empty() || (point_to_point && !queue_.front()->point_to_point())) return nullptr;
  Shared out = std::move(queue_.front());
  queue_.pop_front();
  return out;
}

void TcpCommunicator::work() {
  while (Shared operation = next_operation(true, false)) {
    const auto begin = Clock::now();
    if (operation->point_to_point())
      run_point_to_point(std::move(operation));
    else
      run_collective(operation);
    busy_nanoseconds_.fetch_add(static_cast<std::uint64_t>((Clock::now() - begin).count()), std::memory_order_relaxed);
  }
}

void TcpCommunicator::finish(const Shared& operation, std::optional<Error> failure) {
  {
    const std::lock_guard lock(mutex_);
    --pending_;  // before the event: who has waited for everything may close the communicator at once
  }
  operation->after = Event();
  operation->complete(std::move(failure));
}

void TcpCommunicator::run_collective(const Shared& operation) {
  port_.begin(operation->tag());
  std::optional<Error> failure;
  try {
    operation->after.wait();
    port_.check_aborted();
    run(*operation);
  } catch (...) {
    failure = as_error(std::current_exception());
    abort(failure->what_is_wrong());  // what stops this rank here stops the others, who wait for it
  }
  finish(operation, std::move(failure));
}

void TcpCommunicator::run(const Operation& operation) {
  const std::size_t element = dtype_bytes(operation.dtype);
  const auto* from = static_cast<const std::byte*>(operation.from);
  auto* to = static_cast<std::byte*>(operation.to);
  switch (operation.kind) {
    case OperationKind::all_reduce: {
      const Partition partition = Partition::of_all_reduce(operation.count, size());
      std::byte* own = to == nullptr ? nullptr : to + partition.slice(rank()).begin * element;
      ring_reduce_scatter(port_, from, own, partition, reducer_for(operation.dtype, operation.op));
      return ring_all_gather(port_, own, to, partition, element);
    }
    case OperationKind::reduce_scatter:
      return ring_reduce_scatter(port_, from, to, Partition::of_equal_parts(operation.count, size()),
                                 reducer_for(operation.dtype, operation.op));
    case OperationKind::all_gather: return ring_all_gather(port_, from, to, Partition::of_equal_parts(operation.count, size()), element);
    case OperationKind::broadcast: return ring_broadcast(port_, to, operation.bytes(), operation.root);
    case OperationKind::all_to_all: return pairwise_all_to_all(port_, from, to, operation.bytes());
    case OperationKind::barrier: return barrier();
    case OperationKind::none:
    case OperationKind::create:
    case OperationKind::send:
    case OperationKind::recv: break;
  }
  BALEEN_CHECK(false, "operation", static_cast<int>(operation.kind));
}

// Dissemination, as the built-in backend's.
void TcpCommunicator::barrier() {
  for (int distance = 1; distance < size(); distance *= 2) {
    const int to = (rank() + distance) % size(), from = (rank() + size() - distance) % size();
    port_.commit_to(to, 0);
    port_.arrived_from(from, 0);
    port_.release_from(from);
  }
}

// Consecutive sends and receives are under way together.
void TcpCommunicator::run_point_to_point(Shared first) {
  std::deque<Transfer> active;
  active.push_back({std::move(first), std::nullopt});
  try {
    while (!active.empty()) {
      const std::uint64_t seen = port_.hub().arrivals();
      while (Shared more = next_operation(false, true)) active.push_back({std::move(more), std::nullopt});
      if (!advance(active) && !active.empty()) port_.hub().wait(seen, milliseconds(2));
    }
  } catch (...) {
    const Error failure = as_error(std::current_exception());
    abort(failure.what_is_wrong());
    fail_all(failure, active);
  }
}

// True when something has moved.
bool TcpCommunicator::advance(std::deque<Transfer>& active) {
  port_.check_aborted();
  bool moved = false;
  for (std::size_t index = 0; index < active.size();) {
    bool blocked = false;
    for (std::size_t before = 0; before < index; ++before) blocked |= must_follow(*active[index].operation, *active[before].operation);
    if (blocked || !advance_one(active[index])) {
      ++index;
      continue;
    }
    const Shared operation = active[index].operation;
    active.erase(active.begin() + static_cast<std::ptrdiff_t>(index));
    finish(operation);
    moved = true;
  }
  return moved;
}

// True when it is complete.
bool TcpCommunicator::advance_one(Transfer& transfer) {
  Operation& operation = *transfer.operation;
  if (!transfer.since) {
    if (!operation.after.ready()) return false;
    operation.after.wait();
    transfer.since = Clock::now();
  }
  port_.begin(operation.tag());
  if (operation.kind == OperationKind::send) {
    port_.send(operation.root, operation.from, operation.bytes());
    return true;
  }
  if (const std::byte* message = port_.try_arrived_from(operation.root, operation.bytes())) {
    if (operation.bytes() != 0) std::memcpy(operation.to, message, operation.bytes());
    port_.release_from(operation.root);
    return true;
  }
  port_.check_gone(operation.root);
  const double waited = std::chrono::duration<double>(Clock::now() - *transfer.since).count();
  if (waited * 1000 > static_cast<double>(port_.timeout().count())) port_.fail_deadline(operation.root, waited);
  return false;
}

void TcpCommunicator::fail_all(const Error& error, std::deque<Transfer>& active) {
  for (const Transfer& transfer : active) finish(transfer.operation, error);
  active.clear();
}

}  // namespace baleen::tcp
