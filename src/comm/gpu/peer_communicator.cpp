#include "comm/gpu/peer_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/gpu.h"
#include "device/gpu_runtime_api.h"
#include "launch/background_thread.h"
#include "ops/sum_parts.h"

namespace baleen {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t word_bytes = 128;  // a line of its own each
constexpr int most_members = 100;        // a call of the driver takes 255 words, and each has two
constexpr const char* remedy = "look for the first failure; run the same command again: it resumes";

OperationTag tag_of(OperationKind kind, std::size_t count, DType dtype, ReduceOp op = ReduceOp::sum) {
  return {static_cast<std::uint8_t>(kind), static_cast<std::uint8_t>(dtype), static_cast<std::uint8_t>(op), 0, 0, count};
}

Tensor flat(const void* data, std::size_t count, DType dtype) {
  return Tensor(const_cast<void*>(data), dtype, {static_cast<std::int64_t>(count)});
}

}  // namespace

PeerCommunicator::PeerCommunicator(std::unique_ptr<Communicator> inner, Device& device, milliseconds timeout, std::size_t most_staged)
    : Communicator(inner->rank(), inner->size(), inner->name()),
      inner_(std::move(inner)),
      device_(device),
      most_staged_(most_staged),
      watched_(timeout) {}

PeerCommunicator::~PeerCommunicator() {
  if (!watchdog_.joinable()) return;
  // What is under way ends by itself or by the watch, unless the GPU itself has failed.
  const auto deadline = std::chrono::steady_clock::now() + watched_.timeout();
  for (bool ended = false; !ended;) {
    {
      const std::lock_guard lock(mutex_);
      ended = watched_.empty() || (!failed_.empty() && std::chrono::steady_clock::now() > deadline);
    }
    if (!ended) std::this_thread::sleep_for(milliseconds(1));
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_all();
  watchdog_.join();
  log::debug("communicator '{}': {} operations went by copy engines", name(), turns_);
}

// A driver may have the calls and a GPU not the means: what is tried with a word of this rank's own that is still 0.
std::string PeerCommunicator::obstacle() {
  if (!gpu_streams_have_words()) return "streams cannot wait for words here";
  if (size() > most_members) return fmt::format("{} members are more than a stream waits for at once", size());
  const gpuStream_t stream = native_stream(*stream_);
  std::uint32_t* const own = word(words_.as<std::byte>(), 0, rank());
  const gpuError_t status = gpuStreamWords(stream, 1, {&own, 1}, {&own, 1});
  if (status == gpuSuccess) return "";
  gpuGetLastError();
  return fmt::format("streams cannot wait for words: {}", gpuGetErrorString(status));
}

std::shared_ptr<void> PeerCommunicator::announce(void* memory, std::size_t bytes, MemoryUse use) {
  std::shared_ptr<void> by_inner = inner_->announce(memory, bytes, use);
  if (size() == 1 || bytes < fewest_gathered || !why_not_.empty() || !is_gpu_memory(memory)) return by_inner;
  if (stream_ == nullptr) {
    stream_ = create_urgent_stream(device_);
    index_ = gpu_stream_traits(*stream_).device;
    words_ = device_.allocate("words for other ranks", 2 * static_cast<std::size_t>(size()) * word_bytes);
    why_not_ = obstacle();
    peer_words_ = PeerMemory::exchange(*inner_, index_, words_.data(), words_.bytes(), why_not_);
  }
  std::shared_ptr<PeerMemory> reached;
  if (peer_words_ != nullptr) reached = PeerMemory::exchange(*inner_, index_, memory, bytes, why_not_);
  if (reached == nullptr) {
    log::info("communicator '{}': gathers do not go by copy engines: {}", name(), why_not_);
    return by_inner;
  }
  if (!watchdog_.joinable()) {
    release_ = device_.create_stream();
    watchdog_ = start_background("peer " + name(), [this] { watch(); });
  }
  // Before any operation: allocating waits for the GPU.
  const std::size_t slices = std::min(most_staged_, bytes / static_cast<std::size_t>(size()) * static_cast<std::size_t>(size() - 1));
  if (use == MemoryUse::reduced && staging_.bytes() < slices) {
    staging_ = Buffer();
    staging_ = device_.allocate("slices of other ranks", slices);
    ops::gpu::load_sum_parts(*stream_);
  }
  announced_.push_back(reached);
  return {memory, [this, reached, by_inner](void*) { announced_.erase(std::find(announced_.begin(), announced_.end(), reached)); }};
}

const PeerMemory* PeerCommunicator::find(const void* data, std::size_t bytes) const {
  for (const auto& memory : announced_)
    if (memory->holds(data, bytes)) return memory.get();
  return nullptr;
}

std::uint32_t* PeerCommunicator::word(std::byte* words, int round, int rank) const {
  return reinterpret_cast<std::uint32_t*>(words + static_cast<std::size_t>(round * size() + rank) * word_bytes);
}

// The driver takes all words of a round at once.
void PeerCommunicator::meet(int round) {
  std::vector<std::uint32_t*> theirs, own;
  for (int step = 1; step < size(); ++step) {
    const int other = (rank() + step) % size();
    theirs.push_back(word(peer_words_->of(other, words_.data()), round, rank()));
    own.push_back(word(words_.as<std::byte>(), round, other));
  }
  gpu_check(gpuStreamWords(native_stream(*stream_), turns_, theirs, own), "telling other ranks and waiting for them");
}

template <class Read>
Event PeerCommunicator::run(const OperationTag& tag, Event after, std::size_t bytes, const Read& read) {
  const std::lock_guard one_at_a_time(calls_);
  wait_for_room();
  stream_->wait(after);
  if (inner_last_.state() != nullptr) {
    stream_->wait(std::exchange(inner_last_, {}));
    after = stream_->record();
  }
  {
    const std::lock_guard lock(mutex_);
    check_failed();
    ++turns_;
    watched_.call_begins(tag);
  }
  Event done;
  try {
    meet(0);
    read();
    meet(1);
    done = stream_->record();
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    watched_.call_ended();
    fail(error.what_is_wrong());
    throw;
  }
  ahead_of_inner_ = true;
  copied_bytes_ += bytes;
  bytes_sent_ = inner_->bytes_sent() + copied_bytes_;
  const std::lock_guard lock(mutex_);
  watched_.call_ended();
  watched_.add(std::move(after), done, tag);
  check_failed();
  return done;
}

// The driver blocks a call whose stream holds about a thousand commands, and would with it the thread that ends waits.
void PeerCommunicator::wait_for_room() {
  const std::size_t most = std::max<std::size_t>(4, 640 / (5 * static_cast<std::size_t>(size()) + 4));
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      check_failed();
      if (watched_.size() > most) static_cast<void>(watched_.overdue());  // forgets what has ended
      if (watched_.size() <= most) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Event PeerCommunicator::do_all_gather(const void* send, void* recv, std::size_t send_count, DType dtype, Event after) {
  const std::size_t bytes = send_count * dtype_bytes(dtype);
  auto* const all = static_cast<std::byte*>(recv);
  const auto place = [&](int member) { return all + static_cast<std::size_t>(member) * bytes; };
  const bool in_place = send == place(rank());
  const PeerMemory* const memory = bytes < fewest_gathered ? nullptr
                                   : in_place              ? find(recv, bytes * static_cast<std::size_t>(size()))
                                                           : find(send, bytes);
  if (memory == nullptr)
    return pass(recv, std::move(after), [&](Event at) { return inner_->all_gather(send, recv, send_count, dtype, std::move(at)); });
  return run(tag_of(OperationKind::all_gather, send_count, dtype), std::move(after), bytes * static_cast<std::size_t>(size() - 1), [&] {
    for (int step = 1; step < size(); ++step) {
      const int other = (rank() + step) % size();
      stream_->copy(place(other), memory->of(other, in_place ? place(other) : send), bytes);
    }
    if (!in_place) stream_->copy(place(rank()), send, bytes);
  });
}

const PeerMemory* PeerCommunicator::reducible(const void* send, std::size_t recv_count, DType dtype, ReduceOp op) const {
  const std::size_t bytes = recv_count * dtype_bytes(dtype), n = static_cast<std::size_t>(size());
  const bool summed = (op == ReduceOp::sum || op == ReduceOp::avg) && (dtype == DType::f32 || dtype == DType::bf16);
  return bytes < fewest_reduced || !summed || n > ops::most_parts || staging_.bytes() == 0 ? nullptr : find(send, bytes * n);
}

bool PeerCommunicator::adds_to_held(const void* send, std::size_t recv_count, DType dtype, ReduceOp op) const {
  return reducible(send, recv_count, dtype, op) != nullptr;
}

Event PeerCommunicator::do_reduce_scatter(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  const PeerMemory* const memory = reducible(send, recv_count, dtype, op);
  if (memory == nullptr)
    return pass(recv, std::move(after), [&](Event at) { return inner_->reduce_scatter(send, recv, recv_count, dtype, op, std::move(at)); });
  return reduce(*memory, send, recv, recv_count, dtype, op, false, after);
}

Event PeerCommunicator::do_reduce_scatter_add(const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op, Event after) {
  return reduce(*reducible(send, recv_count, dtype, op), send, recv, recv_count, dtype, op, true, after);
}

Event PeerCommunicator::reduce(const PeerMemory& memory, const void* send, void* recv, std::size_t recv_count, DType dtype, ReduceOp op,
                               bool add, const Event& after) {
  const std::size_t element = dtype_bytes(dtype), bytes = recv_count * element, n = static_cast<std::size_t>(size());
  // As much of the others' slices as fits.
  const std::size_t room = staging_.bytes() / (n - 1) / element, piece = recv_count <= room ? recv_count : room / 64 * 64;
  const auto* const slice = static_cast<const std::byte*>(send) + static_cast<std::size_t>(rank()) * bytes;
  const float scale = op == ReduceOp::avg ? 1.0f / static_cast<float>(n) : 1.0f;
  // Pieces of all the others, and their sum with one's own: in the order of the ring, which ends with this rank.
  const auto sum_piece = [&](std::size_t begin) {
    const std::size_t count = std::min(piece, recv_count - begin);
    std::vector<Tensor> parts;
    for (int step = 1; step < size(); ++step) {
      const int other = (rank() + step) % size();
      std::byte* const staged = staging_.as<std::byte>() + parts.size() * piece * element;
      stream_->copy(staged, memory.of(other, slice + begin * element), count * element);
      parts.push_back(flat(staged, count, dtype));
    }
    parts.push_back(flat(slice + begin * element, count, dtype));
    ops::gpu::sum_parts(*stream_, flat(static_cast<std::byte*>(recv) + begin * element, count, dtype), parts, scale, add);
  };
  return run(tag_of(OperationKind::reduce_scatter, recv_count, dtype, op), after, bytes * (n - 1), [&] {
    for (std::size_t begin = 0; begin < recv_count; begin += piece) sum_piece(begin);
  });
}

// Operations of the GPU's memory keep their order, whichever way they go; the host's has a queue of its own.
template <class Operation>
Event PeerCommunicator::pass(const void* buffer, Event after, const Operation& operation) {
  const bool ordered = is_gpu_memory(buffer);
  if (ordered) {
    const std::lock_guard one_at_a_time(calls_);
    {
      const std::lock_guard lock(mutex_);
      check_failed();
    }
    if (std::exchange(ahead_of_inner_, false)) {
      stream_->wait(after);
      after = stream_->record();
    }
  }
  Event event = operation(std::move(after));
  if (ordered) inner_last_ = event;
  bytes_sent_ = inner_->bytes_sent() + copied_bytes_;
  busy_nanoseconds_ = inner_->busy_nanoseconds();
  return event;
}

Event PeerCommunicator::do_all_reduce(const void* send, void* recv, std::size_t count, DType dtype, ReduceOp op, Event after) {
  return pass(recv, std::move(after), [&](Event at) { return inner_->all_reduce(send, recv, count, dtype, op, std::move(at)); });
}

Event PeerCommunicator::do_broadcast(void* buffer, std::size_t count, DType dtype, int root, Event after) {
  return pass(buffer, std::move(after), [&](Event at) { return inner_->broadcast(buffer, count, dtype, root, std::move(at)); });
}

Event PeerCommunicator::do_send(const void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return pass(buffer, std::move(after), [&](Event at) { return inner_->send(buffer, count, dtype, peer, std::move(at)); });
}

Event PeerCommunicator::do_recv(void* buffer, std::size_t count, DType dtype, int peer, Event after) {
  return pass(buffer, std::move(after), [&](Event at) { return inner_->recv(buffer, count, dtype, peer, std::move(at)); });
}

Event PeerCommunicator::do_exchange(const void* send, int to, void* recv, int from, std::size_t count, DType dtype, Event after) {
  return pass(recv, std::move(after), [&](Event at) { return inner_->exchange(send, to, recv, from, count, dtype, std::move(at)); });
}

Event PeerCommunicator::do_barrier(Event after) {
  {
    const std::lock_guard one_at_a_time(calls_);
    {
      const std::lock_guard lock(mutex_);
      check_failed();
    }
    if (ahead_of_inner_) {  // still: what comes behind the barrier waits for itself
      stream_->wait(after);
      after = stream_->record();
    }
  }
  return pass(nullptr, std::move(after), [&](Event at) { return inner_->barrier(std::move(at)); });
}

Event PeerCommunicator::do_all_to_all(const void* send, void* recv, std::size_t count_each, DType dtype, Event after) {
  return pass(recv, std::move(after), [&](Event at) { return inner_->all_to_all(send, recv, count_each, dtype, std::move(at)); });
}

void PeerCommunicator::check_failed() const {
  if (!failed_.empty()) throw Error(ExitCode::rank_failed, failed_, fmt::format("rank {}, communicator '{}'", rank(), name()), remedy);
}

// The words that the stream waits for become what it waits for, so that all it holds ends. Again and again: a rank that still runs writes
// its own turns over them. Never throws: a GPU that has failed runs nothing any more.
void PeerCommunicator::let_go() {
  if (release_ == nullptr) return;
  constexpr std::uint32_t beyond = 1u << 30;
  try {
    const gpuStream_t stream = native_stream(*release_);
    std::vector<std::uint32_t*> all;
    for (const int round : {0, 1})
      for (int other = 0; other < size(); ++other) all.push_back(word(words_.as<std::byte>(), round, other));
    gpu_check(gpuStreamWords(stream, turns_ + beyond, all, {}), "ending waits");
    static_cast<void>(watched_.overdue());  // forgets what has ended
  } catch (const Error&) {
    watched_.clear();
  }
}

void PeerCommunicator::fail(const std::string& reason) {
  if (!failed_.empty()) return;
  failed_ = reason;
  let_go();  // first: the library's abort may wait for the GPU
  inner_->abort(reason);
}

std::string PeerCommunicator::failure() const {  // known before anything that was let go has ended
  const std::lock_guard lock(mutex_);
  return failed_.empty() ? inner_->failure() : failed_;
}

void PeerCommunicator::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail(reason);
}

void PeerCommunicator::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    try {
      if (!failed_.empty())
        let_go();
      else if (const auto tag = watched_.overdue())
        fail(fmt::format("communicator '{}': {} on rank {} waited {:.1f} s for other ranks", name(), describe(*tag), rank(),
                         static_cast<double>(watched_.timeout().count()) / 1000));
      else if (const std::string aborted = inner_->failure(); !aborted.empty())
        fail(aborted);
    } catch (const Error& error) {
      fail(error.what_is_wrong());
    }
    stopped_.wait_for(lock, watched_.empty() ? milliseconds(50) : milliseconds(5), [&] { return stopping_; });
  }
}

}  // namespace baleen
