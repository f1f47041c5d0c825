#include "comm/operation.h"

#include <functional>

#include "base/hash.h"

namespace baleen {
namespace {

const char* kind_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::none: return "nothing";
    case OperationKind::create: return "create_communicator";
    case OperationKind::all_reduce: return "all_reduce";
    case OperationKind::reduce_scatter: return "reduce_scatter";
    case OperationKind::all_gather: return "all_gather";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::all_to_all: return "all_to_all";
    case OperationKind::send: return "send/recv";
    case OperationKind::recv: return "send/recv";
    case OperationKind::barrier: return "barrier";
  }
  return "?";
}

const char* reduce_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
  }
  return "?";
}

struct Range {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};
Range buffer_of(const Request& message) {
  return {static_cast<const std::byte*>(message.kind == OperationKind::send ? message.from : message.to), message.bytes()};
}

}  // namespace

std::string_view operation_name(OperationKind kind) {
  if (kind == OperationKind::send) return "send";
  if (kind == OperationKind::recv) return "recv";
  return kind_name(kind);
}

OperationTag Request::tag() const {
  OperationTag out;
  // Both ends of a message describe it alike.
  out.kind = static_cast<std::uint8_t>(kind == OperationKind::recv ? OperationKind::send : kind);
  out.dtype = static_cast<std::uint8_t>(dtype);
  out.reduce_op = static_cast<std::uint8_t>(op);
  out.root = kind == OperationKind::broadcast ? root : 0;
  out.count = count;
  return out;
}

bool same_direction(const Request& later, const Request& earlier) {
  return later.kind == earlier.kind && later.root == earlier.root;
}

bool buffers_conflict(const Request& later, const Request& earlier) {
  if (later.kind == OperationKind::send && earlier.kind == OperationKind::send) return false;  // both only read
  const Range a = buffer_of(later), b = buffer_of(earlier);
  const std::less<> before;  // of pointers into different buffers, too
  return a.bytes != 0 && b.bytes != 0 && before(a.begin, b.begin + b.bytes) && before(b.begin, a.begin + a.bytes);
}

bool must_follow(const Request& later, const Request& earlier) {
  return same_direction(later, earlier) || buffers_conflict(later, earlier);
}

void Operation::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.load(std::memory_order_acquire); });
  if (failure_) throw Error(*failure_);
}

void Operation::complete(std::optional<Error> failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
  done_.store(true, std::memory_order_release);
  changed_.notify_all();  // under the lock: the waiter may destroy this object as soon as it can take it
}

std::string describe(const OperationTag& tag) {
  const auto kind = static_cast<OperationKind>(tag.kind);
  std::string out = kind_name(kind);
  if (kind == OperationKind::barrier || kind == OperationKind::create || kind == OperationKind::none) return out;
  out += " of " + std::to_string(tag.count) + " " + std::string(dtype_name(static_cast<DType>(tag.dtype)));
  if (kind == OperationKind::all_reduce || kind == OperationKind::reduce_scatter)
    out += std::string(" (") + reduce_name(static_cast<ReduceOp>(tag.reduce_op)) + ")";
  if (kind == OperationKind::broadcast) out += " from member " + std::to_string(tag.root);
  return out;
}

std::uint64_t group_signature(const std::vector<int>& ranks, const std::string& name, std::uint64_t call) {
  return hash_bytes(ranks.data(), ranks.size() * sizeof(int), hash_bytes(name.data(), name.size(), call)) | 1;
}

}  // namespace baleen
