#include "comm/shm/point_to_point.h"

#include <algorithm>
#include <cstring>

namespace baleen::shm {

bool PointToPoint::blocked(std::size_t index) const {
  return std::any_of(active_.begin(), active_.begin() + static_cast<std::ptrdiff_t>(index),
                     [&](const Transfer& earlier) { return must_follow(*active_[index].operation, *earlier.operation); });
}

// Moves chunks until the channel is full or empty, or the message is complete.
bool PointToPoint::advance_one(Transfer& transfer) {
  const Operation& operation = *transfer.operation;
  const std::size_t total = operation.bytes();
  bool any = false;
  port_.begin(operation.tag());
  while (transfer.done < total) {
    const std::size_t length = std::min(port_.slot_bytes(), total - transfer.done);
    if (operation.kind == OperationKind::send) {
      std::byte* slot = port_.try_slot_to(operation.root);
      if (slot == nullptr) return any;
      std::memcpy(slot, static_cast<const std::byte*>(operation.from) + transfer.done, length);
      port_.commit_to(operation.root, length);
    } else {
      const std::byte* slot = port_.try_arrived_from(operation.root, length);
      if (slot == nullptr) {
        port_.check_may_arrive(operation.root);
        return any;
      }
      std::memcpy(static_cast<std::byte*>(operation.to) + transfer.done, slot, length);
      port_.release_from(operation.root);
    }
    transfer.done += length;
    any = true;
  }
  return any;
}

std::vector<std::shared_ptr<Operation>> PointToPoint::advance() {
  port_.check_aborted();
  moved_ = false;
  std::vector<std::shared_ptr<Operation>> complete;
  for (std::size_t index = 0; index < active_.size();) {
    Transfer& transfer = active_[index];
    const bool can_start = !blocked(index) && (transfer.started || transfer.operation->after.ready());
    if (!can_start) {
      ++index;
      continue;
    }
    if (!transfer.started) {
      transfer.operation->after.wait();  // ready: returns at once, or throws the failure it stands for
      transfer.started = true;
      transfer.operation->begun = std::chrono::steady_clock::now();
      moved_ = true;  // its deadline counts from here
    }
    moved_ |= advance_one(transfer);
    if (transfer.done < transfer.operation->bytes()) {
      ++index;
      continue;
    }
    moved_ = true;
    complete.push_back(transfer.operation);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  if (moved_) wait_.reset();
  return complete;
}

void PointToPoint::idle() {
  const auto started = std::find_if(active_.begin(), active_.end(), [](const Transfer& transfer) { return transfer.started; });
  const bool waits_for_events = std::any_of(active_.begin(), active_.end(), [](const Transfer& transfer) { return !transfer.started; });
  if (!wait_) {
    wait_.emplace(port_, started == active_.end() ? -1 : started->operation->root);
    return;  // and looks once more with the doorbell armed
  }
  if (started != active_.end()) port_.begin(started->operation->tag());
  // An event does not ring the doorbell when it completes, so it is looked at often. How long it may take is its own affair; an operation
  // enqueued meanwhile does ring, and may pass the ones that cannot start.
  wait_->step(std::chrono::microseconds(waits_for_events ? 200 : 20'000));
}

std::vector<std::shared_ptr<Operation>> PointToPoint::take_all() {
  std::vector<std::shared_ptr<Operation>> out;
  for (Transfer& transfer : active_) out.push_back(std::move(transfer.operation));
  active_.clear();
  wait_.reset();
  return out;
}

}  // namespace baleen::shm
