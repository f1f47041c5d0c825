#include "comm/nccl/nccl_communicator.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/gpu.h"
#include "launch/background_thread.h"

namespace baleen::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* remedy =
    "look for the first failure; NCCL_DEBUG=WARN shows the library's own messages; run the same command again: it resumes";

OperationTag tag_of(OperationKind kind, std::size_t count, DType dtype, ReduceOp op = ReduceOp::sum, int root = 0) {
  return {static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(dtype), static_cast<std::uint8_t>(op), 0, root, count};
}

bool recording(Stream& stream) {
  return gpu_stream_traits(stream).recording;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const Library& library, std::unique_ptr<Communicator> host, Device& device,
                                   const GpuCommunicatorOptions& options)
    : Communicator(host->rank(), host->size(), host->name()),
      library_(library),
      host_(std::move(host)),
      device_(device),
      timeout_(options.timeout),
      watched_(options.timeout) {
  watchdog_ = start_background("nccl " + name(), [this] { watch(); });
  try {
    stream_ = create_urgent_stream(device);
    open();
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      fail(fmt::format("communicator '{}' was not opened on rank {}", name(), rank()));
    }
    end_watch();
    throw;
  }
}

void NcclCommunicator::end_watch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  watchdog_.join();
}

NcclCommunicator::~NcclCommunicator() {
  // What is under way ends by itself or by the watchdog.
  for (bool ended = false; !ended;) {
    {
      const std::lock_guard lock(mutex_);
      ended = watched_.empty() || !failed_.empty();
    }
    if (!ended) std::this_thread::sleep_for(milliseconds(1));
  }
  end_watch();
  log::debug("communicator '{}': {} buffers were registered, {} operations are part of graphs", name(), registrations_, recorded_);
  if (!failed_.empty()) return;  // aborted, which frees them
  // Ending one waits for the other members, who may be elsewhere when an error ends this rank; the process's end frees what it has.
  if (std::uncaught_exceptions() > exceptions_) return;
  if (comm_ != nullptr && !await("nccl closing", [comm = comm_, destroy = library_.destroy] { destroy(comm); }))
    log::warning("communicator '{}', rank {}: the other members have not ended it; it stays until this process ends", name(), rank());
}

// The library's collective calls have no deadline: a thread waits for each, and stays, with what it uses, where it is never answered, until
// this process ends, which a lost rank brings about. False where the timeout passed or the host's communicator was aborted.
template <class Work>
bool NcclCommunicator::await(const std::string& thread, Work work) const {
  struct Awaited {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto awaited = std::make_shared<Awaited>();
  start_background(thread, [awaited, work = std::move(work)] {
    work();
    const std::lock_guard lock(awaited->mutex);
    awaited->done = true;
    awaited->changed.notify_all();
  }).detach();
  const auto deadline = Clock::now() + timeout_;
  std::unique_lock lock(awaited->mutex);
  while (!awaited->changed.wait_for(lock, milliseconds(20), [&] { return awaited->done; }))
    if (!host_->failure().empty() || Clock::now() > deadline) return false;
  return true;
}

// Over the host's communicator travels the id by which the library's processes find each other.
void NcclCommunicator::open() {
  struct Opened {
    ncclComm_t comm = nullptr;
    ncclResult_t status = ncclUnhandledCudaError;
  };
  ncclUniqueId id{};
  if (rank() == 0) check(library_.get_unique_id(&id), "ncclGetUniqueId");
  host_->broadcast(&id, sizeof id, DType::u8, 0).wait();
  const auto opened = std::make_shared<Opened>();
  const int device = gpu_stream_traits(*stream_).device;
  const bool ended = await("nccl opening", [opened, device, id, init_rank = library_.init_rank, members = size(), member = rank()] {
    if (gpuSetDevice(device) == gpuSuccess)  // the library looks at the thread's
      opened->status = init_rank(&opened->comm, members, id, member);
  });
  if (!ended) {
    const std::string aborted = host_->failure();
    const std::lock_guard lock(mutex_);
    fail(!aborted.empty() ? aborted : late("ncclCommInitRank"));
    check_failed();
  }
  {
    const std::lock_guard lock(mutex_);
    comm_ = opened->comm;
  }
  check(opened->status, "ncclCommInitRank");
}

// A call may wait for other ranks, whom the library connects when it first needs to: the watch ends those that take too long.
template <class Call>
void NcclCommunicator::call(const OperationTag& tag, const Call& enqueue) {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    check_failed();
    comm = comm_;
    watched_.call_begins(tag);
  }
  struct CallEnds {
    NcclCommunicator& of;
    ~CallEnds() {
      const std::lock_guard lock(of.mutex_);
      of.watched_.call_ended();
    }
  };
  ncclResult_t status = ncclSuccess;
  {
    const CallEnds ends{*this};
    status = enqueue(comm);
  }
  const std::lock_guard lock(mutex_);
  check_failed();
  if (status == ncclSuccess) return;
  fail(fmt::format("communicator '{}', rank {}: {}", name(), rank(), library_.error_string(status)));
  throw Error(ExitCode::rank_failed, failed_, describe(tag), remedy);
}

void NcclCommunicator::check(ncclResult_t status, const std::string& what) {
  if (status == ncclSuccess) return;
  const std::lock_guard lock(mutex_);
  fail(fmt::format("communicator '{}', rank {}: {}", name(), rank(), library_.error_string(status)));
  throw Error(ExitCode::rank_failed, failed_, what, remedy);
}

std::string NcclCommunicator::late(const std::string& what) const {
  return fmt::format("communicator '{}': {} on rank {} waited {:.1f} s for other ranks", name(), what, rank(),
                     static_cast<double>(timeout_.count()) / 1000);
}

void NcclCommunicator::check_failed() const {
  if (!failed_.empty()) throw Error(ExitCode::rank_failed, failed_, fmt::format("rank {}, communicator '{}'", rank(), name()), remedy);
}

void NcclCommunicator::fail(const std::string& reason) {
  if (!failed_.empty()) return;
  failed_ = reason;
  host_->abort(reason);
  watched_.clear();
  stopped_.notify_all();  // the watch tells the library
}

void NcclCommunicator::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail(reason);
}

std::shared_ptr<void> NcclCommunicator::announce(void* memory, std::size_t bytes, MemoryUse) {
#if BALEEN_NCCL_REGISTERS
  if (library_.register_buffer == nullptr || bytes == 0 || !is_gpu_memory(memory)) return nullptr;
  const std::lock_guard one_at_a_time(calls_);
  const ncclComm_t comm = opened();
  if (comm == nullptr) return nullptr;
  void* handle = nullptr;
  if (const ncclResult_t status = library_.register_buffer(comm, memory, bytes, &handle); status != ncclSuccess) {
    log::info("communicator '{}': {} bytes are used without being registered: {}", name(), bytes, library_.error_string(status));
    return nullptr;
  }
  if (handle == nullptr) return nullptr;  // NCCL_LOCAL_REGISTER=0
  ++registrations_;
  return {memory, [this, handle](void*) {
            const std::lock_guard alone_in_the_library(calls_);
            if (const ncclComm_t left = opened(); left != nullptr) library_.deregister_buffer(left, handle);  // else it went with it
          }};
#else
  static_cast<void>(memory), static_cast<void>(bytes);
  return nullptr;
#endif
}

ncclComm_t NcclCommunicator::opened() const {
  const std::lock_guard lock(mutex_);
  return comm_;
}

// In a group, an abort ends calls and kernels at once and frees nothing before the group's end (NCCL 2.22): by then no thread is in the
// library any more.
void NcclCommunicator::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && failed_.empty()) {
    const bool idle = look();
    stopped_.wait_for(lock, idle ? milliseconds(50) : milliseconds(5), [&] { return stopping_ || !failed_.empty(); });
  }
  if (failed_.empty()) return;
  library_.group_start();
  if (comm_ != nullptr) library_.abort(std::exchange(comm_, nullptr));
  stopped_.wait(lock, [&] { return stopping_; });
  lock.unlock();
  library_.group_end();
}

// Takes note of what has begun and ended; true when nothing is under way.
bool NcclCommunicator::look() {
  try {
    if (const std::string aborted = host_->failure(); !aborted.empty()) {
      fail(aborted);
      return true;
    }
    if (comm_ != nullptr) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = library_.async_error(comm_, &state);
      if (asked != ncclSuccess || state != ncclSuccess)
        fail(fmt::format("communicator '{}', rank {}: {}", name(), rank(), library_.error_string(asked != ncclSuccess ? asked : state)));
    }
    if (const auto tag = watched_.overdue()) fail(late(describe(*tag)));
  } catch (const Error& error) {
    fail(error.what_is_wrong());
  }
  return watched_.empty();
}

template <class Call>
Event NcclCommunicator::run(const OperationTag& tag, Event after, std::size_t bytes, const Call& enqueue) {
  const std::lock_guard one_at_a_time(calls_);
  {
    const std::lock_guard lock(mutex_);
    check_failed();
  }
  stream_->wait(after);
  const bool in_graph = recording(*stream_);
  if (tag.count != 0 || tag.kind == static_cast<std::uint8_t>(OperationKind::barrier)) {
    const gpuStream_t stream = native_stream(*stream_);
    call(tag, [&](ncclComm_t comm) { return enqueue(comm, stream); });
  }
  bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
  Event done = stream_->record();
  const std::lock_guard lock(mutex_);
  if (in_graph)
    ++recorded_;
  else
    watched_.add(std::move(after), done, tag);
  return done;
}

Event NcclCommunicator::do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  if (!is_gpu_memory(recv)) return host_->all_reduce(send, recv, count, dtype, op, std::move(after));
  const std::size_t bytes = 2 * count * dtype_bytes(dtype) / static_cast<std::size_t>(size()) * others();
  return run(tag_of(OperationKind::all_reduce, count, dtype, op), std::move(after), bytes, [&](ncclComm_t comm, gpuStream_t stream) {
    return library_.all_reduce(send, recv, count, type_of(dtype), op_of(op), comm, stream);
  });
}

Event NcclCommunicator::do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  if (!is_gpu_memory(recv)) return host_->reduce_scatter(send, recv, recv_count, dtype, op, std::move(after));
  const std::size_t bytes = recv_count * dtype_bytes(dtype) * others();
  return run(tag_of(OperationKind::reduce_scatter, recv_count, dtype, op), std::move(after), bytes,
             [&](ncclComm_t comm, gpuStream_t stream) {
               return library_.reduce_scatter(send, recv, recv_count, type_of(dtype), op_of(op), comm, stream);
             });
}

Event NcclCommunicator::do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  if (!is_gpu_memory(recv)) return host_->all_gather(send, recv, send_count, dtype, std::move(after));
  const std::size_t bytes = send_count * dtype_bytes(dtype) * others();
  return run(tag_of(OperationKind::all_gather, send_count, dtype), std::move(after), bytes, [&](ncclComm_t comm, gpuStream_t stream) {
    return library_.all_gather(send, recv, send_count, type_of(dtype), comm, stream);
  });
}

Event NcclCommunicator::do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  if (!is_gpu_memory(buffer)) return host_->broadcast(buffer, count, dtype, root, std::move(after));
  const std::size_t bytes = next() == root ? 0 : count * dtype_bytes(dtype);
  return run(
      tag_of(OperationKind::broadcast, count, dtype, ReduceOp::sum, root), std::move(after), bytes,
      [&](ncclComm_t comm, gpuStream_t stream) { return library_.broadcast(buffer, buffer, count, type_of(dtype), root, comm, stream); });
}

Event NcclCommunicator::do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  if (!is_gpu_memory(buffer)) return host_->send(buffer, count, dtype, peer, std::move(after));
  return run(tag_of(OperationKind::send, count, dtype), std::move(after), count * dtype_bytes(dtype),
             [&](ncclComm_t comm, gpuStream_t stream) { return library_.send(buffer, count, type_of(dtype), peer, comm, stream); });
}

Event NcclCommunicator::do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  if (!is_gpu_memory(buffer)) return host_->recv(buffer, count, dtype, peer, std::move(after));
  return run(tag_of(OperationKind::send, count, dtype), std::move(after), 0,
             [&](ncclComm_t comm, gpuStream_t stream) { return library_.recv(buffer, count, type_of(dtype), peer, comm, stream); });
}

Event NcclCommunicator::do_exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after) {
  if (!is_gpu_memory(recv)) return host_->exchange(send, to, recv, from, count, dtype, std::move(after));
  return run(tag_of(OperationKind::send, count, dtype), std::move(after), count * dtype_bytes(dtype),
             [&](ncclComm_t comm, gpuStream_t stream) {
               return grouped([&] {
                 const ncclResult_t status = library_.send(send, count, type_of(dtype), to, comm, stream);
                 return status != ncclSuccess ? status : library_.recv(recv, count, type_of(dtype), from, comm, stream);
               });
             });
}

// Messages that leave and arrive together.
template <class Messages>
ncclResult_t NcclCommunicator::grouped(const Messages& messages) {
  ncclResult_t status = library_.group_start();
  if (status == ncclSuccess) status = messages();
  const ncclResult_t ended = library_.group_end();
  return status != ncclSuccess ? status : ended;
}

// The host's barrier, once what came before on the GPU is done.
Event NcclCommunicator::do_barrier(Event after) {
  after.wait();
  stream_->synchronize();
  return host_->barrier();
}

Event NcclCommunicator::do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  if (!is_gpu_memory(recv)) return host_->all_to_all(send, recv, count_each, dtype, std::move(after));
  const std::size_t block = count_each * dtype_bytes(dtype), all = block * static_cast<std::size_t>(size());
  if (send == recv && exchanged_.bytes() < all) {
    stream_->synchronize();
    exchanged_ = device_.allocate("all-to-all in place", all);
  }
  return run(tag_of(OperationKind::all_to_all, count_each, dtype), std::move(after), block * others(),
             [&](ncclComm_t comm, gpuStream_t stream) {
               const auto* from = static_cast<const std::byte*>(send);
               if (send == recv) {
                 stream_->copy(exchanged_.data(), send, all);
                 from = exchanged_.as<std::byte>();
               }
               return grouped([&] {
                 ncclResult_t status = ncclSuccess;
                 for (int peer = 0; peer < size() && status == ncclSuccess; ++peer) {
                   const std::size_t place = static_cast<std::size_t>(peer) * block;
                   status = library_.send(from + place, count_each, type_of(dtype), peer, comm, stream);
                   if (status == ncclSuccess)
                     status = library_.recv(static_cast<std::byte*>(recv) + place, count_each, type_of(dtype), peer, comm, stream);
                 }
                 return status;
               });
             });
}

}  // namespace baleen::nccl
