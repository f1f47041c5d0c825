// A point in the work of a stream or a communicator that others can wait for.
#pragma once

#include <memory>

namespace baleen {

// What a backend implements. Each implementation bounds its own wait: it returns when the work is done and throws Error
// (ExitCode::rank_failed) when the work failed, was aborted or passed its deadline.
class EventState {
 public:
  virtual ~EventState() = default;
  virtual bool ready() const = 0;
  virtual void wait() = 0;
};

// Copyable handle. A default-constructed event is complete.
class Event {
 public:
  Event() = default;
  explicit Event(std::shared_ptr<EventState> state) : state_(std::move(state)) {}

  bool ready() const { return state_ == nullptr || state_->ready(); }
  // Blocks the calling thread until complete; rethrows the failure of the work it stands for.
  void wait() const {
    if (state_ != nullptr) state_->wait();
  }
  EventState* state() const { return state_.get(); }

 private:
  std::shared_ptr<EventState> state_;
};

}  // namespace baleen
