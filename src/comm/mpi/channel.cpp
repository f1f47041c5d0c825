#include "comm/mpi/channel.h"

#include <algorithm>
#include <utility>

namespace baleen::mpi {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::chrono::nanoseconds Waited::look() {
  const auto now = Clock::now();
  if (last_) total_ += std::min<std::chrono::nanoseconds>(now - *last_, std::chrono::milliseconds(100));
  last_ = now;
  return total_;
}

// The requests of an operation that failed cannot be taken back (MPI has no cancelling of collectives), so their memory outlives them.
Channel::~Channel() {
  for (Active& active : abandoned_) static_cast<void>(active.transfer.release());
}

void Channel::enqueue(std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  queued_.store(queue_.size(), std::memory_order_release);
  ++pending_;
}

std::size_t Channel::pending() const {
  const std::lock_guard lock(mutex_);
  return pending_;
}

std::string Channel::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failure_->what_is_wrong() : "";
}

bool Channel::busy() const {
  return !active_.empty() || queued_.load(std::memory_order_acquire) != 0;
}

void Channel::admit() {
  if (queued_.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(mutex_);
  while (!queue_.empty()) {
    const bool alone = !queue_.front()->point_to_point() || (!active_.empty() && !active_.front().operation->point_to_point());
    if (alone && !active_.empty()) return;
    active_.push_back({});
    active_.back().operation = std::move(queue_.front());
    queue_.pop_front();
    queued_.store(queue_.size(), std::memory_order_release);
  }
}

// Whether an earlier operation that is still active must go first.
bool Channel::blocked(std::size_t index) const {
  const Operation& mine = *active_[index].operation;
  for (std::size_t before = 0; before < index; ++before) {
    const Operation& earlier = *active_[before].operation;
    // MPI keeps the order of messages that have started.
    if (same_direction(mine, earlier) && active_[before].transfer == nullptr) return true;
    if (buffers_conflict(mine, earlier)) return true;
  }
  return false;
}

bool Channel::advance_one(Active& active) {
  Operation& operation = *active.operation;
  if (active.transfer == nullptr) {
    if (!operation.after.ready()) return false;
    operation.after.wait();  // rethrows its failure
    active.begin = Clock::now();
    ++begun_;
    active.transfer = start_transfer(link_, operation);
  }
  if (!active.transfer->test()) return false;
  const auto spent = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - active.begin);
  busy_.fetch_add(static_cast<std::uint64_t>(spent.count()), std::memory_order_relaxed);
  sent_.fetch_add(bytes_on_the_wire(link_, operation), std::memory_order_relaxed);
  if (CommObserver* observer = observer_)
    observer->on_operation(name_, operation_name(operation.kind), operation.bytes(), active.begin, Clock::now());
  return true;
}

std::optional<Error> Channel::advance() {
  admit();
  if (failure_) {
    fail(Error(*failure_));
    return std::nullopt;
  }
  for (std::size_t index = 0; index < active_.size();) {
    if (active_[index].transfer == nullptr && blocked(index)) {
      ++index;
      continue;
    }
    std::optional<Error> failure;
    try {
      if (!advance_one(active_[index])) {
        ++index;
        continue;
      }
    } catch (const Error& error) {
      failure = error;
    } catch (const std::exception& error) {
      failure = Error(ExitCode::rank_failed, error.what());
    }
    if (failure) return failure;
    const auto operation = std::move(active_[index].operation);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
    finish(operation, std::nullopt);
  }
  return std::nullopt;
}

void Channel::finish(const std::shared_ptr<Operation>& operation, std::optional<Error> failure) {
  {
    const std::lock_guard lock(mutex_);
    --pending_;  // before the event: who has waited for everything may close the communicator at once
  }
  operation->after = Event();  // lets go of what it waited for
  operation->complete(std::move(failure));
}

void Channel::fail(const Error& error) {
  std::deque<std::shared_ptr<Operation>> rest;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    rest.swap(queue_);
    queued_.store(0, std::memory_order_release);
  }
  std::deque<Active> active;
  active.swap(active_);
  for (Active& one : active) {
    const auto operation = one.operation;
    if (one.transfer != nullptr) abandoned_.push_back(std::move(one));
    finish(operation, failure_);
  }
  for (const auto& operation : rest) finish(operation, failure_);
}

const Operation* Channel::late(std::chrono::nanoseconds limit) {
  for (Active& active : active_)
    if (active.transfer != nullptr && active.waited.look() > limit) return active.operation.get();
  return nullptr;
}

OperationTag Channel::current() const {
  for (const Active& active : active_)
    if (active.transfer != nullptr) return active.operation->tag();
  return {};
}

}  // namespace baleen::mpi
