// One enqueued operation of a backend whose thread runs a queue: what to do, and the event that tells when it is done or how it failed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "comm/communicator.h"
#include "device/event.h"

namespace baleen {

// What an operation is, as far as all its members must agree on it. Plain bytes: it travels between processes.
struct OperationTag {
  std::uint8_t kind = 0, dtype = 0, reduce_op = 0, unused = 0;
  std::int32_t root = 0;
  std::uint64_t count = 0;
  bool operator==(const OperationTag&) const = default;
};

enum class OperationKind : std::uint8_t {
  none,
  create,
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send,
  recv,
  barrier
};

// What a caller asks for.
struct Request {
  OperationKind kind = OperationKind::none;
  const void* from = nullptr;  // what it reads; for broadcast `to` serves as both
  void* to = nullptr;
  std::size_t count = 0;  // as in communicator.h
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  // or the peer of send and recv

  std::size_t bytes() const { return count * dtype_bytes(dtype); }
  bool point_to_point() const { return kind == OperationKind::send || kind == OperationKind::recv; }
  OperationTag tag() const;
};

// Of sends and receives, `later` behind `earlier` in the queue. Messages of one direction and peer are told apart by their order alone.
bool same_direction(const Request& later, const Request& earlier);
// One of them writes what the other reads or writes.
bool buffers_conflict(const Request& later, const Request& earlier);
// Whether `later` must wait until `earlier` is complete.
bool must_follow(const Request& later, const Request& earlier);

struct Operation final : public EventState, public Request {
  Operation(const Request& request, Event starts_after) : Request(request), after(std::move(starts_after)) {}
  Event after;
  std::chrono::steady_clock::time_point begun;  // when what it waits for was there

  bool ready() const override { return done_.load(std::memory_order_acquire); }
  // Ends because the worker bounds every wait of its own.
  void wait() override;
  void complete(std::optional<Error> failure = std::nullopt);

 private:
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> failure_;  // thrown as a fresh copy in every thread that waits
};

std::string_view operation_name(OperationKind kind);
// "all_reduce of 1000 fp32 (sum)".
std::string describe(const OperationTag& tag);

// Of what all members of a communicator must agree on when they make it; never 0, which means "not yet here".
std::uint64_t group_signature(const std::vector<int>& ranks, const std::string& name, std::uint64_t call);

}  // namespace baleen
