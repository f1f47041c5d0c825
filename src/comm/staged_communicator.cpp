#include "comm/staged_communicator.h"

#include <utility>

#include "device/gpu.h"

namespace baleen {
namespace {

// A send in flight, with the host copy that it reads.
class HeldEvent final : public EventState {
 public:
  HeldEvent(Event event, std::shared_ptr<std::vector<std::byte>> data) : event_(std::move(event)), data_(std::move(data)) {}
  ~HeldEvent() override {
    try {
      event_.wait();
    } catch (...) {  // whoever waits for the operation itself hears of it
    }
  }
  HeldEvent(const HeldEvent&) = delete;
  HeldEvent& operator=(const HeldEvent&) = delete;
  bool ready() const override { return event_.ready(); }
  void wait() override { event_.wait(); }

 private:
  Event event_;
  std::shared_ptr<std::vector<std::byte>> data_;
};

}  // namespace

StagedCommunicator::StagedCommunicator(std::unique_ptr<Communicator> inner, Device& device)
    : Communicator(inner->rank(), inner->size(), inner->name()), inner_(std::move(inner)), copies_(device.create_stream()) {}

Event StagedCommunicator::counted(Event event) {
  bytes_sent_ = inner_->bytes_sent();
  busy_nanoseconds_ = inner_->busy_nanoseconds();
  return event;
}

void StagedCommunicator::to_host(std::vector<std::byte>& to, const void* from, std::size_t bytes) {
  to.resize(bytes);
  copies_->copy(to.data(), from, bytes);
  copies_->synchronize();
}

template <class Operation>
Event StagedCommunicator::staged(const void* send, std::size_t send_bytes, void* recv, std::size_t recv_bytes, const Event& after,
                                 const Operation& operation) {
  after.wait();
  if (size() == 1) {  // the sum of one, the blocks of one: what is not in place moves
    if (send != nullptr && send != recv) copies_->copy(recv, send, recv_bytes);
    copies_->synchronize();
    return counted(Event());
  }
  if (send != nullptr)
    to_host(sent_, send, send_bytes);
  else
    to_host(received_, recv, recv_bytes);
  received_.resize(recv_bytes);
  operation(sent_.data(), received_.data()).wait();
  copies_->copy(recv, received_.data(), recv_bytes);
  copies_->synchronize();
  return counted(Event());
}

Event StagedCommunicator::do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  if (!is_gpu_memory(recv)) return counted(inner_->all_reduce(send, recv, count, dtype, op, std::move(after)));
  const std::size_t bytes = count * dtype_bytes(dtype);
  return staged(send, bytes, recv, bytes, after,
                [&](const void* from, void* to) { return inner_->all_reduce(from, to, count, dtype, op); });
}

Event StagedCommunicator::do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  if (!is_gpu_memory(recv)) return counted(inner_->reduce_scatter(send, recv, recv_count, dtype, op, std::move(after)));
  const std::size_t bytes = recv_count * dtype_bytes(dtype);
  return staged(send, bytes * static_cast<std::size_t>(size()), recv, bytes, after,
                [&](const void* from, void* to) { return inner_->reduce_scatter(from, to, recv_count, dtype, op); });
}

Event StagedCommunicator::do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  if (!is_gpu_memory(recv)) return counted(inner_->all_gather(send, recv, send_count, dtype, std::move(after)));
  const std::size_t bytes = send_count * dtype_bytes(dtype);
  return staged(send, bytes, recv, bytes * static_cast<std::size_t>(size()), after,
                [&](const void* from, void* to) { return inner_->all_gather(from, to, send_count, dtype); });
}

Event StagedCommunicator::do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  if (!is_gpu_memory(buffer)) return counted(inner_->broadcast(buffer, count, dtype, root, std::move(after)));
  return staged(nullptr, 0, buffer, count * dtype_bytes(dtype), after,
                [&](const void*, void* to) { return inner_->broadcast(to, count, dtype, root); });
}

Event StagedCommunicator::do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  if (!is_gpu_memory(recv)) return counted(inner_->all_to_all(send, recv, count_each, dtype, std::move(after)));
  const std::size_t bytes = count_each * dtype_bytes(dtype) * static_cast<std::size_t>(size());
  return staged(send, bytes, recv, bytes, after,
                [&](const void* from, void* to) { return inner_->all_to_all(from, to, count_each, dtype); });
}

Event StagedCommunicator::do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  if (!is_gpu_memory(buffer)) return counted(inner_->send(buffer, count, dtype, peer, std::move(after)));
  after.wait();
  const auto data = std::make_shared<std::vector<std::byte>>();
  to_host(*data, buffer, count * dtype_bytes(dtype));
  return counted(Event(std::make_shared<HeldEvent>(inner_->send(data->data(), count, dtype, peer), data)));
}

Event StagedCommunicator::do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  if (!is_gpu_memory(buffer)) return counted(inner_->recv(buffer, count, dtype, peer, std::move(after)));
  return staged(nullptr, 0, buffer, count * dtype_bytes(dtype), after,
                [&](const void*, void* to) { return inner_->recv(to, count, dtype, peer); });
}

}  // namespace baleen
