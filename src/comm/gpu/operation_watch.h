// Operations under way on a stream of a GPU, none of which may wait for other ranks for ever.
#pragma once

#include <chrono>
#include <list>
#include <optional>

#include "comm/operation.h"

namespace baleen {

class OperationWatch {
 public:
  explicit OperationWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // A call that enqueues an operation, and that may wait itself: for the library to connect ranks, for the driver to load a kernel.
  void call_begins(const OperationTag& tag) { calling_ = Call{tag, std::chrono::steady_clock::now()}; }
  void call_ended() { calling_.reset(); }
  // An operation of the stream can begin when those before it have ended and `after` is complete.
  void add(Event after, Event done, const OperationTag& tag) { under_way_.push_back({std::move(after), std::move(done), tag}); }
  // Forgets what has ended. The operation, or call, that began longer ago than the timeout allows and has not ended, if there is one.
  std::optional<OperationTag> overdue() {
    using Clock = std::chrono::steady_clock;
    while (!under_way_.empty() && under_way_.front().done.ready()) under_way_.pop_front();
    if (calling_ && Clock::now() - calling_->since > timeout_) return calling_->tag;
    if (under_way_.empty() || !under_way_.front().after.ready()) return std::nullopt;
    Watched& first = under_way_.front();
    if (first.since == Clock::time_point{}) first.since = Clock::now();
    return Clock::now() - first.since > timeout_ ? std::optional(first.tag) : std::nullopt;
  }
  bool empty() const { return under_way_.empty(); }
  std::size_t size() const { return under_way_.size(); }
  void clear() { under_way_.clear(); }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  struct Watched {
    Event after, done;
    OperationTag tag;
    std::chrono::steady_clock::time_point since{};  // it could begin
  };
  struct Call {
    OperationTag tag;
    std::chrono::steady_clock::time_point since;
  };
  std::chrono::milliseconds timeout_;
  std::optional<Call> calling_;
  std::list<Watched> under_way_;
};

}  // namespace baleen
