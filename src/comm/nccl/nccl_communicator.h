// Collectives between GPUs by the vendor's library (NCCL, RCCL), ordered with compute by events and never waited for on the host.
//
// Sums are in the library's order, in the buffer's own dtype; docs/numerics.md's order is the built-in backend's promise.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/communicator.h"
#include "comm/gpu/operation_watch.h"
#include "comm/gpu_communicator.h"
#include "comm/nccl/library.h"
#include "comm/operation.h"
#include "device/device.h"

namespace baleen::nccl {

// Each operation is put on the communicator's own stream behind `after`; inside a graph that is being recorded it becomes part of it.
//
// The library's send ends when its receive has begun, and what stands behind it on the stream waits. Ranks that send to each other at once,
// or around a ring, exchange() instead. The library also connects two ranks on their first message, for which the host waits until both
// have come to it (docs/decisions/009-nccl-messages.md).
//
// Communicators block: a call may wait on the host until the others have come to theirs, where the library has to connect ranks first. One
// that does not block starts a thread for each call, 57 µs on two H200s (docs/decisions/009-nccl-messages.md).
//
// A thread watches what is under way, calls too: when an operation takes longer than the timeout after it could begin, when the library
// reports an error, or when the host's communicator was aborted, all operations end, and later ones fail with the reason.
class NcclCommunicator final : public Communicator {
 public:
  // Collective over the members of `host`, which carries the library's id and all buffers in host memory.
  NcclCommunicator(const Library& library, std::unique_ptr<Communicator> host, Device& device, const GpuCommunicatorOptions& options);
  ~NcclCommunicator() override;

  void abort(const std::string& reason) override;
  std::string failure() const override { return host_->failure(); }
  bool alone() const override { return false; }
  // Registers memory of a GPU with the library where it can (ncclCommRegister), for collectives; NCCL_LOCAL_REGISTER=0 keeps it from using
  // that.
  std::shared_ptr<void> announce(void* memory, std::size_t bytes, MemoryUse use) override;

 protected:
  Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) override;
  Event do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) override;
  Event do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) override;
  Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) override;
  Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) override;
  Event do_exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after) override;
  Event do_barrier(Event after) override;
  Event do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) override;

 private:
  template <class Work>
  bool await(const std::string& thread, Work work) const;
  void open();
  // Both throw Error, with everything aborted, when the library reports one.
  template <class Call>
  void call(const OperationTag& tag, const Call& enqueue);
  void check(ncclResult_t status, const std::string& what);
  std::string late(const std::string& what) const;
  ncclComm_t opened() const;  // nullptr: aborted
  void end_watch();
  void check_failed() const;
  void fail(const std::string& reason);  // with mutex_ held
  void watch();
  bool look();
  template <class Call>
  Event run(const OperationTag& tag, Event after, std::size_t bytes, const Call& call);
  template <class Messages>
  ncclResult_t grouped(const Messages& messages);
  std::size_t others() const { return static_cast<std::size_t>(size() - 1); }

  const Library& library_;
  std::unique_ptr<Communicator> host_;
  Device& device_;
  std::chrono::milliseconds timeout_;
  int exceptions_ = std::uncaught_exceptions();
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<Stream> stream_;
  Buffer exchanged_;  // a copy of what an all_to_all in place sends

  std::mutex calls_;  // of the library, by all but the watch; taken before the other
  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::string failed_;
  OperationWatch watched_;
  std::size_t registrations_ = 0, recorded_ = 0;  // of buffers; operations that have become part of graphs
  std::thread watchdog_;
};

}  // namespace baleen::nccl
