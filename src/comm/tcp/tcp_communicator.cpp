#include "comm/tcp/tcp_communicator.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/error.h"

namespace baleen::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

}  // namespace

TcpPort::TcpPort(std::shared_ptr<Hub> hub, std::uint32_t id, std::vector<int> members, int rank, std::string name, milliseconds timeout,
                 std::atomic<std::uint64_t>& sent)
    : hub_(std::move(hub)),
      id_(id),
      members_(std::move(members)),
      rank_(rank),
      next_((rank + 1) % size()),
      previous_((rank + size() - 1) % size()),
      name_(std::move(name)),
      timeout_(timeout),
      sent_(sent),
      slot_(slot_bytes()) {}

void TcpPort::send(int peer, const void* from, std::size_t bytes) {
  sent_.fetch_add(bytes, std::memory_order_relaxed);
  hub_->send(world_rank(peer), id_, tag_, from, bytes);
}

const std::byte* TcpPort::try_arrived_from(int peer, std::size_t bytes) {
  const Message* message = hub_->front(world_rank(peer), id_);
  if (message == nullptr) return nullptr;
  if (message->tag != tag_ || message->bytes.size() != bytes)
    fail(fmt::format("communicator '{}': rank {} runs {} while rank {} runs {} ({} and {} bytes in one message)", name_, world_rank(rank_),
                     describe(tag_), world_rank(peer), describe(message->tag), bytes, message->bytes.size()));
  static constexpr std::byte nothing{};
  return message->bytes.empty() ? &nothing : message->bytes.data();
}

const std::byte* TcpPort::arrived_from(int peer, std::size_t bytes) {
  const auto begin = Clock::now();
  while (true) {
    const std::uint64_t seen = hub_->arrivals();
    if (const std::byte* message = try_arrived_from(peer, bytes)) return message;
    check_aborted();
    check_gone(peer);
    const auto waited = Clock::now() - begin;
    if (waited > timeout_) fail_deadline(peer, std::chrono::duration<double>(waited).count());
    hub_->wait(seen, milliseconds(20));
  }
}

void TcpPort::join(std::uint64_t signature) {
  begin({static_cast<std::uint8_t>(OperationKind::create)});
  // To every rank of the world: one that this rank does not count as a member may count this one.
  for (int other = 0; other < hub_->size(); ++other)
    if (other != world_rank(rank_)) hub_->send(other, id_, tag_, &signature, sizeof signature);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, arrived_from(peer, sizeof theirs), sizeof theirs);
    release_from(peer);
    if (theirs != signature)
      fail(fmt::format("communicator '{}': ranks {} and {} came with different groups or names", name_, world_rank(rank_),
                       world_rank(peer)));
  }
}

void TcpPort::check_aborted() const {
  const std::string reason = hub_->failure(id_);
  if (!reason.empty())
    throw Error(ExitCode::rank_failed, reason, fmt::format("rank {}, communicator '{}', {}", world_rank(rank_), name_, describe(tag_)),
                "look for the first failure named above; the run goes on from its last checkpoint when started again");
}

// What a rank sent before it left can still be read, so this is asked after looking.
void TcpPort::check_gone(int peer) {
  if (hub_->gone(world_rank(peer)) && hub_->front(world_rank(peer), id_) == nullptr)
    fail(fmt::format("communicator '{}': {} on rank {} waits for rank {}, whose connection has ended: it died, or the network did", name_,
                     describe(tag_), world_rank(rank_), world_rank(peer)));
}

void TcpPort::fail_deadline(int peer, double seconds) {
  fail(fmt::format("communicator '{}': {} on rank {} waited {:.1f} s for rank {}", name_, describe(tag_), world_rank(rank_), seconds,
                   world_rank(peer)));
}

void TcpPort::fail(const std::string& reason) {
  hub_->abort(0, reason);
  check_aborted();
  throw Error(ExitCode::rank_failed, reason);  // not reached: the world is aborted
}

TcpCommunicator::TcpCommunicator(std::shared_ptr<Hub> hub, std::uint32_t id, const std::vector<int>& members, int rank,
                                 const std::string& name, milliseconds timeout)
    : WorkerCommunicator(rank, static_cast<int>(members.size()), name),
      port_(std::move(hub), id, members, rank, name, timeout, bytes_sent_) {
  port_.join(group_signature(members, name, id));
  start_worker("tcp");
}

// Consecutive sends and receives are under way together.
void TcpCommunicator::run_point_to_point(Shared first) {
  std::deque<Transfer> active;
  active.push_back({std::move(first)});
  const auto failure = attempt([&] {
    const BusyTime busy(*this);
    while (!active.empty()) {
      const std::uint64_t seen = port_.hub().arrivals();
      while (Shared more = next_point_to_point()) active.push_back({std::move(more)});
      if (!advance(active) && !active.empty()) port_.hub().wait(seen, milliseconds(2));
    }
  });
  if (!failure) return;
  abort(failure->what_is_wrong());
  for (const Transfer& transfer : active) finish(transfer.operation, failure);
}

// True when something has moved.
bool TcpCommunicator::advance(std::deque<Transfer>& active) {
  port_.check_aborted();
  bool moved = false;
  for (std::size_t index = 0; index < active.size();) {
    bool blocked = false;
    for (std::size_t before = 0; before < index; ++before) blocked |= must_follow(*active[index].operation, *active[before].operation);
    if (blocked || !advance_one(active[index])) {
      ++index;
      continue;
    }
    const Shared operation = active[index].operation;
    active.erase(active.begin() + static_cast<std::ptrdiff_t>(index));
    finish(operation);
    moved = true;
  }
  return moved;
}

// True when it is complete.
bool TcpCommunicator::advance_one(Transfer& transfer) {
  Operation& operation = *transfer.operation;
  if (!transfer.started) {
    if (!operation.after.ready()) return false;
    operation.after.wait();
    transfer.started = true;
    operation.begun = Clock::now();
  }
  port_.begin(operation.tag());
  if (operation.kind == OperationKind::send) {
    port_.send(operation.root, operation.from, operation.bytes());
    return true;
  }
  if (const std::byte* message = port_.try_arrived_from(operation.root, operation.bytes())) {
    if (operation.bytes() != 0) std::memcpy(operation.to, message, operation.bytes());
    port_.release_from(operation.root);
    return true;
  }
  port_.check_gone(operation.root);
  const double waited = std::chrono::duration<double>(Clock::now() - operation.begun).count();
  if (waited * 1000 > static_cast<double>(port_.timeout().count())) port_.fail_deadline(operation.root, waited);
  return false;
}

}  // namespace baleen::tcp
