// Sends and receives that are under way at once.
//
// Two ranks that first send to each other and then receive must not wait for each other for ever, whatever the length of the messages. So
// consecutive sends and receives of a communicator's queue advance together, chunk by chunk, as their channels allow, while operations that
// could touch each other keep the order of the queue: messages of one channel, and operations whose buffers overlap.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "comm/operation.h"
#include "comm/shm/port.h"

namespace baleen::shm {

class PointToPoint {
 public:
  explicit PointToPoint(Port& port) : port_(port) {}

  void add(std::shared_ptr<Operation> operation) { active_.push_back({std::move(operation)}); }
  bool empty() const { return active_.empty(); }

  // Whatever happens from here on ends the sleep of the next idle().
  void arm() {
    if (wait_) wait_->arm();
  }
  // Moves what can be moved now. Returns the operations that are complete; throws when the job was aborted.
  std::vector<std::shared_ptr<Operation>> advance();
  // True when the latest advance() moved or completed anything.
  bool moved() const { return moved_; }
  // One step of waiting for something to become possible.
  void idle();
  // Everything still under way, in order, for the caller to fail.
  std::vector<std::shared_ptr<Operation>> take_all();

 private:
  struct Transfer {
    std::shared_ptr<Operation> operation;
    bool started = false;
    std::size_t done = 0;  // bytes
  };
  bool blocked(std::size_t index) const;
  bool advance_one(Transfer& transfer);

  Port& port_;
  std::vector<Transfer> active_;  // in the order of the queue
  bool moved_ = false;
  std::optional<Port::Wait> wait_;  // since nothing moves
};

}  // namespace baleen::shm
