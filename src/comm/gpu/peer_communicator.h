// Gathers and reduce-scatters between GPUs of one host by their copy engines, which read the other ranks' memory over the link between
// the GPUs. A collective library moves the same bytes by kernels, and products, whose blocks each keep a multiprocessor to the end, then
// take as much longer as the kernels stay (docs/decisions/016-gathers-by-copy-engines.md).
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/gpu/operation_watch.h"
#include "comm/gpu/peer_memory.h"
#include "device/device.h"

namespace baleen {

// Takes all_gather and reduce_scatter (sums and averages of fp32 and bf16) of announced memory, from so many bytes a rank on that a
// collective library is no quicker; everything else goes to `inner`, behind or before these in the order of the calls. Members announce and
// call alike: what one announces as the k-th memory, at the offset of the operation, is what the others announced as theirs. Sums have the
// built-in backend's order and so its bits.
//
// An operation is enqueued and never waited for on the host. Each rank tells the others when its own memory is ready to be read, by a word
// in theirs that a stream of theirs waits for, and when it has read; a thread bounds these waits, as NCCL's are (NcclCommunicator).
class PeerCommunicator final : public Communicator {
 public:
  // Of a rank. Below them two H200s wait longer for each other than NCCL's kernels take (docs/performance.md).
  static constexpr std::size_t fewest_gathered = std::size_t{4} << 20, fewest_reduced = std::size_t{8} << 20;

  // Of what the others have of this rank's slice, reduce_scatter reads at most `most_staged` bytes at once, and a larger slice in pieces.
  // Each piece ends with a kernel, which waits for multiprocessors.
  PeerCommunicator(std::unique_ptr<Communicator> inner, Device& device, std::chrono::milliseconds timeout,
                   std::size_t most_staged = std::size_t{256} << 20);
  ~PeerCommunicator() override;

  bool alone() const override { return inner_->alone(); }
  void abort(const std::string& reason) override;
  void observe(CommObserver* observer) override { inner_->observe(observer); }
  std::string failure() const override;
  // Collective over the members.
  std::shared_ptr<void> announce(void* memory, std::size_t bytes, MemoryUse use) override;
  bool adds_to_held(const void* send, std::size_t recv_count, DType dtype, ReduceOp op) const override;
  // Operations that went by copies so far.
  std::uint64_t copied_operations() const { return turns_; }

 protected:
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override;
  Event do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) override;
  Event do_reduce_scatter_add(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) override;
  Event do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) override;
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) override;
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after) override;
  Event do_barrier(Event after) override;
  Event do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) override;

 private:
  std::string obstacle();
  const PeerMemory* find(const void* data, std::size_t bytes) const;
  // The memory of a reduce_scatter that goes by copies; nullptr: it goes to `inner`.
  const PeerMemory* reducible(const void* send, std::size_t recv_count, DType dtype, ReduceOp op) const;
  Event reduce(const PeerMemory& memory, const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, bool add,
               const Event& after);
  // `read()` enqueues what reads the others' memory, which is ready by then.
  template <class Read>
  Event run(const OperationTag& tag, Event after, std::size_t bytes, const Read& read);
  // The words of a round (0: my memory is ready, 1: I have read): written into the others', waited for in one's own.
  void meet(int round);
  std::uint32_t* word(std::byte* words, int round, int rank) const;
  // `operation(after)`: one on `inner`, of this buffer.
  template <class Operation>
  Event pass(const void* buffer, Event after, const Operation& operation);
  void wait_for_room();
  void check_failed() const;
  void let_go();  // with mutex_ held, as the next
  void fail(const std::string& reason);
  void watch();

  std::unique_ptr<Communicator> inner_;
  Device& device_;
  int index_ = 0;  // of the GPU
  std::size_t most_staged_;
  std::unique_ptr<Stream> stream_, release_;  // nullptr until memory is announced
  Buffer words_, staging_;
  std::unique_ptr<PeerMemory> peer_words_;
  std::string why_not_;  // members cannot reach each other; asked once
  std::vector<std::shared_ptr<PeerMemory>> announced_;
  Event inner_last_;
  bool ahead_of_inner_ = false;
  std::uint64_t copied_bytes_ = 0;

  std::mutex calls_;  // of operations; taken before the other, which is not held while one is enqueued
  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::string failed_;
  std::uint32_t turns_ = 0;  // operations so far; changed with both held
  OperationWatch watched_;
  std::thread watchdog_;
};

}  // namespace baleen
