#include "comm/communicator.h"

#include <exception>
#include <limits>
#include <utility>

#include "base/error.h"
#include "comm/ring/partition.h"

namespace baleen {
namespace {

// A buffer may be null only where nothing is moved, and its size must be expressible in bytes.
void check_buffer(const void* buffer, std::size_t count, int parts, DType dtype) {
  const std::size_t limit = std::numeric_limits<std::ptrdiff_t>::max() / dtype_bytes(dtype) / static_cast<std::size_t>(parts);
  BALEEN_CHECK(buffer != nullptr || count == 0, "count", count);
  BALEEN_CHECK(count <= limit, "count", count, "dtype", dtype_name(dtype));
}

class BothEvents final : public EventState {
 public:
  BothEvents(Event first, Event second) : first_(std::move(first)), second_(std::move(second)) {}
  bool ready() const override { return first_.ready() && second_.ready(); }
  void wait() override {  // both have ended, also where one has failed
    try {
      first_.wait();
    } catch (const std::exception&) {
      try {
        second_.wait();
      } catch (const std::exception&) {  // the first is told
      }
      throw;
    }
    second_.wait();
  }

 private:
  Event first_, second_;
};

void check_reducible(DType dtype) {
  BALEEN_CHECK(dtype != DType::u8, "bytes have no sum: use all_gather, broadcast or send");
}

}  // namespace

SliceRange slice_of(std::size_t count, int size, int rank) {
  BALEEN_CHECK(size >= 1 && rank >= 0 && rank < size, "size", size, "rank", rank);
  return Partition::of_all_reduce(count, size).slice(rank);
}

std::shared_ptr<void> Communicator::announce(void*, std::size_t, MemoryUse) {
  return nullptr;
}

Event Communicator::all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  check_reducible(dtype);
  check_buffer(send, count, 1, dtype);
  check_buffer(recv, count, 1, dtype);
  return do_all_reduce(send, recv, count, dtype, op, std::move(after));
}

Event Communicator::reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  check_reducible(dtype);
  check_buffer(send, recv_count, size_, dtype);
  check_buffer(recv, recv_count, 1, dtype);
  return do_reduce_scatter(send, recv, recv_count, dtype, op, std::move(after));
}

Event Communicator::reduce_scatter_add(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  BALEEN_CHECK(adds_to_held(send, recv_count, dtype, op), name_, recv_count);
  check_buffer(recv, recv_count, 1, dtype);
  return do_reduce_scatter_add(send, recv, recv_count, dtype, op, std::move(after));
}

Event Communicator::do_reduce_scatter_add(const void*, void*, std::size_t, DType, ReduceOp, Event) {
  BALEEN_CHECK(false, name_);
  return {};
}

Event Communicator::all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  check_buffer(send, send_count, 1, dtype);
  check_buffer(recv, send_count, size_, dtype);
  return do_all_gather(send, recv, send_count, dtype, std::move(after));
}

Event Communicator::broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  BALEEN_CHECK(root >= 0 && root < size_, "root", root, "size", size_);
  check_buffer(buffer, count, 1, dtype);
  return do_broadcast(buffer, count, dtype, root, std::move(after));
}

Event Communicator::all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  check_buffer(send, count_each, size_, dtype);
  check_buffer(recv, count_each, size_, dtype);
  return do_all_to_all(send, recv, count_each, dtype, std::move(after));
}

Event Communicator::send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  BALEEN_CHECK(peer >= 0 && peer < size_ && peer != rank_, "peer", peer, "rank", rank_, "size", size_);
  check_buffer(buffer, count, 1, dtype);
  return do_send(buffer, count, dtype, peer, std::move(after));
}

Event Communicator::recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  BALEEN_CHECK(peer >= 0 && peer < size_ && peer != rank_, "peer", peer, "rank", rank_, "size", size_);
  check_buffer(buffer, count, 1, dtype);
  return do_recv(buffer, count, dtype, peer, std::move(after));
}

Event Communicator::exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after) {
  for (const int peer : {to, from}) BALEEN_CHECK(peer >= 0 && peer < size_ && peer != rank_, "peer", peer, "rank", rank_, "size", size_);
  check_buffer(send, count, 1, dtype);
  check_buffer(recv, count, 1, dtype);
  return do_exchange(send, to, recv, from, count, dtype, std::move(after));
}

Event Communicator::do_exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after) {
  Event sent = do_send(send, count, dtype, to, after);
  return Event(std::make_shared<BothEvents>(std::move(sent), do_recv(recv, count, dtype, from, std::move(after))));
}

Event Communicator::barrier(Event after) {
  return do_barrier(std::move(after));
}

}  // namespace baleen
