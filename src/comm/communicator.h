// The one interface over every collective engine: the built-in shared-memory ring, MPI, NCCL and RCCL.
//
// Every operation is asynchronous: it joins the communicator's own first-in-first-out queue, starts once `after` is complete (in the
// call, if that takes microseconds: decision 015) and returns an Event. All members call the same ones in one order. Buffers belong to it
// until then; send == recv (all_gather: send == recv + rank*count; reduce_scatter: recv == send + rank*count) means in place.
//
// Order of summation (docs/parallelism.md): the elements of slice k are summed over ranks k+1, k+2, …, k in ring order, in the dtype
// (bf16 in fp32, rounded once at the end), whatever the algorithm, message size or chunking. AVG is the sum times 1/size.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "device/event.h"
#include "device/shared_memory.h"

namespace baleen {

enum class ReduceOp { sum, avg, max, min };
// Whether announced memory will be scattered and reduced, too, which may take memory of the communicator's own.
enum class MemoryUse { moved, reduced };

// Elements of a slice: `count` elements over `size` ranks in slices that are multiples of this, the last ones possibly short or empty.
inline constexpr std::size_t slice_granularity = 128;
struct SliceRange {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};
// The slice that rank `rank` of `size` owns in an all_reduce of `count` elements. Every ZeRO stage uses the same boundaries.
SliceRange slice_of(std::size_t count, int size, int rank);

// Hears of operations when they have ended, for traces, on the thread that ran them: a communicator's own, or one that asked for it.
class CommObserver {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~CommObserver() = default;
  // `begin`: when what the operation waited for was there.
  virtual void on_operation(const std::string& communicator, std::string_view operation, std::size_t bytes, Time begin, Time end) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The neighbours on the ring of all ranks.
  int next() const { return (rank_ + 1) % size_; }
  int previous() const { return (rank_ + size_ - 1) % size_; }
  const std::string& name() const { return name_; }  // for messages: the mesh axis
  // There is nobody to talk to, and operations in place, which change nothing, can be left out. A library that was asked for by name is
  // called for one rank too: what is measured and recorded there is what several ranks do.
  virtual bool alone() const { return size_ == 1; }

  // Counts are elements. f32, f64, bf16, i32 and u64 reduce; u8 only moves.
  Event all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after = {});
  Event reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after = {});
  // The same, added to what recv holds, by a communicator that adds_to_held() what it scatters from there. The bits are those of a
  // reduce_scatter to other memory and an addition behind it.
  Event reduce_scatter_add(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after = {});
  virtual bool adds_to_held(const void* /*send*/, std::size_t /*recv_count*/, DType, ReduceOp) const { return false; }
  Event all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after = {});
  Event broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after = {});
  // Block j of `send` goes to rank j, block i of `recv` comes from rank i; every block has `count_each` elements.
  Event all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after = {});
  // Over NCCL a send waits for its receive in the queue: ranks that send to each other at once, or around a ring, use exchange().
  Event send(const void* buffer, std::size_t count, DType dtype, int peer, Event after = {});
  Event recv(void* buffer, std::size_t count, DType dtype, int peer, Event after = {});
  // A send and a receive of as much at once, as where all pass on to the next; complete when both are. The rank `to` calls it, or recv(),
  // too, and `from` it or send(). (MPI_Sendrecv.)
  Event exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after = {});
  Event barrier(Event after = {});

  // Announces memory that operations will use again and again, so that a library that can reads and writes it without copies of its own
  // in between. Collective for memory of a GPU: every member announces as many bytes at the same point, and operations use them at the
  // same offsets. The announcement ends with what is returned, which must go before the memory and before the communicator; nullptr: there
  // is nothing to gain, and nothing to keep.
  virtual std::shared_ptr<void> announce(void* memory, std::size_t bytes, MemoryUse use);

  // Makes every pending and future operation of every member fail with Error(rank_failed, reason). Any thread may call it.
  virtual void abort(const std::string& reason) = 0;

  // Tells `observer`, which must outlive this, of every operation. To be called before the first one. A backend whose operations run on
  // the device's own queue tells nothing.
  virtual void observe(CommObserver* observer) { observer_ = observer; }

  // Why it can no longer be used: its own or the job's failure, wherever it happened; empty while there is none. Any thread may ask.
  virtual std::string failure() const { return ""; }

  // Bytes this rank has put on the wire and nanoseconds its worker has spent inside operations, since construction.
  std::uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  std::uint64_t busy_nanoseconds() const { return busy_nanoseconds_.load(std::memory_order_relaxed); }

 protected:
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

  virtual Event do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) = 0;
  virtual Event do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) = 0;
  virtual Event do_reduce_scatter_add(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after);
  virtual Event do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) = 0;
  virtual Event do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) = 0;
  virtual Event do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) = 0;
  virtual Event do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) = 0;
  // A do_send and a do_recv.
  virtual Event do_exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after);
  virtual Event do_barrier(Event after) = 0;
  virtual Event do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) = 0;

  std::atomic<std::uint64_t> bytes_sent_{0}, busy_nanoseconds_{0};
  CommObserver* observer_ = nullptr;

 private:
  int rank_, size_;
  std::string name_;
};

// All ranks of the job, and the maker of communicators over subsets of them.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string backend() const = 0;
  // This rank's number among those of its machine, which picks its GPU: rank() until set.
  int local_rank() const { return local_rank_ < 0 ? rank() : local_rank_; }
  void set_local_rank(int local_rank) { local_rank_ = local_rank; }
  // What [comm] backend asks for, for buffers in GPU memory (gpu_communicator.h), and the deadline of waits for other ranks.
  const std::string& gpu_backend() const { return gpu_backend_; }
  std::chrono::milliseconds gpu_timeout() const { return gpu_timeout_; }
  void set_gpu_backend(std::string backend, std::chrono::milliseconds timeout) {
    gpu_backend_ = std::move(backend);
    gpu_timeout_ = timeout;
  }
  // [comm] peer_copies: GpuCommunicatorOptions' own.
  bool peer_copies() const { return peer_copies_; }
  void set_peer_copies(bool peer_copies) { peer_copies_ = peer_copies; }

  // A communicator over `ranks` (world ranks, ascending; its members' order is their order there). Collective over the world: every rank
  // calls it the same number of times in the same order, each with the group it is itself in, or with an empty list to take no part
  // (returns nullptr). The groups of one call are disjoint.
  virtual std::unique_ptr<Communicator> create_communicator(const std::vector<int>& ranks, const std::string& name) = 0;
  // This rank's share of memory that all ranks can reach: collectives over buffers there copy nothing in between. nullptr: there is none.
  virtual std::shared_ptr<SharedMemory> shared_memory() { return nullptr; }
  // Makes every operation of every communicator of this world fail, on every rank.
  virtual void abort(const std::string& reason) = 0;

 private:
  std::string gpu_backend_ = "auto";
  std::chrono::milliseconds gpu_timeout_ = std::chrono::seconds(60);
  bool peer_copies_ = true;
  int local_rank_ = -1;
};

}  // namespace baleen
