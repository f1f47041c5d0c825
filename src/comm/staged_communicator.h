// Collectives of host memory for buffers on a GPU: copied to the host, combined there by another communicator, copied back. For machines
// without NCCL or RCCL, and for several ranks on one GPU, which those refuse; nothing about it is fast.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"

namespace baleen {

// Buffers in host memory go straight to `inner`. For the others a call blocks its thread until `after` and, but for sends, the operation
// are complete; since every member calls the same operations in the same order, and sends do not wait for their peer, that cannot deadlock.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, Device& device);
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void observe(CommObserver* observer) override { inner_->observe(observer); }
  std::string failure() const override { return inner_->failure(); }

 protected:
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override;
  Event do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) override;
  Event do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) override;
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) override;
  Event do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) override;
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_barrier(Event after) override { return counted(inner_->barrier(std::move(after))); }

 private:
  // Runs `operation(send, recv)` on host copies of the two, of `send_bytes` and `recv_bytes`; a null send: only recv, which is read too.
  template <class Operation>
  Event staged(const void* send, std::size_t send_bytes, void* recv, std::size_t recv_bytes, const Event& after,
               const Operation& operation);
  Event counted(Event event);
  void to_host(std::vector<std::byte>& to, const void* from, std::size_t bytes);

  std::unique_ptr<Communicator> inner_;
  std::unique_ptr<Stream> copies_;
  std::vector<std::byte> sent_, received_;
};

}  // namespace baleen
