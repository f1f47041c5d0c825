#include "comm/tcp/hub.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "launch/background_thread.h"

namespace baleen::tcp {
namespace {

constexpr std::uint32_t data_kind = 1, abort_kind = 2;
constexpr auto farewell = std::chrono::seconds(2);
constexpr std::size_t longest_reason = std::size_t{64} << 10;

}  // namespace

// Whether a hub sends such a message. The length is looked at before memory is taken for it.
bool Hub::Header::possible() const {
  if (magic != Header().magic) return false;
  if (kind == abort_kind) return bytes <= longest_reason;
  if (kind != data_kind) return false;
  if (tag.kind != static_cast<std::uint8_t>(OperationKind::send)) return bytes <= piece_bytes;
  const std::size_t each = dtype_bytes(static_cast<DType>(tag.dtype));
  return each != 0 && bytes % each == 0 && bytes / each == tag.count;
}

Hub::Hub(int rank, std::vector<Descriptor> peers) : rank_(rank), peers_(peers.size()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (std::size_t peer = 0; peer < peers.size(); ++peer) peers_[peer].socket = std::move(peers[peer]);
  thread_ = start_background("comm tcp", [this] { run(); });
}

Hub::~Hub() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Hub::send(int peer, std::uint32_t communicator, const OperationTag& tag, const void* bytes, std::size_t count) {
  Header header;
  header.communicator = communicator;
  header.kind = data_kind;
  header.tag = tag;
  header.bytes = count;
  std::vector<std::byte> out(sizeof header + count);
  std::memcpy(out.data(), &header, sizeof header);
  if (count != 0) std::memcpy(out.data() + sizeof header, bytes, count);
  const std::lock_guard lock(mutex_);
  put(peers_[static_cast<std::size_t>(peer)], std::move(out));
}

void Hub::put(Peer& peer, std::vector<std::byte> bytes) {
  if (peer.gone || !peer.socket.valid()) return;
  peer.outgoing.push_back(std::move(bytes));
  if (peer.outgoing.size() == 1) write_to(peer);
  if (!peer.outgoing.empty()) eventfd_write(wake_.get(), 1);
}

void Hub::write_to(Peer& peer) {
  while (!peer.outgoing.empty()) {
    const auto& first = peer.outgoing.front();
    const ssize_t sent = ::send(peer.socket.get(), first.data() + peer.sent, first.size() - peer.sent, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) return leave(peer);
    peer.sent += static_cast<std::size_t>(sent);
    if (peer.sent < first.size()) return;
    peer.outgoing.pop_front();
    peer.sent = 0;
  }
}

void Hub::leave(Peer& peer) {
  peer.gone = true;
  peer.outgoing.clear();
  arrivals_.fetch_add(1, std::memory_order_release);
  arrived_.notify_all();
}

// Takes what the socket has; false when nothing more comes now.
bool Hub::read_from(int rank, Peer& peer) {
  const bool in_header = peer.header_bytes < sizeof peer.header;
  std::byte* to = in_header ? reinterpret_cast<std::byte*>(&peer.header) + peer.header_bytes : peer.body.data() + peer.body_bytes;
  const std::size_t room = in_header ? sizeof peer.header - peer.header_bytes : peer.body.size() - peer.body_bytes;
  const ssize_t got = recv(peer.socket.get(), to, room, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    leave(peer);
    return false;
  }
  (in_header ? peer.header_bytes : peer.body_bytes) += static_cast<std::size_t>(got);
  if (in_header && peer.header_bytes == sizeof peer.header) {
    if (!peer.header.possible()) {
      leave(peer);
      return false;
    }
    try {
      peer.body.resize(peer.header.bytes);
    } catch (const std::exception&) {  // more than there is memory for
      leave(peer);
      return false;
    }
    peer.body_bytes = 0;
  }
  if (peer.header_bytes == sizeof peer.header && peer.body_bytes == peer.body.size()) deliver(rank, peer);
  return true;
}

void Hub::deliver(int rank, Peer& peer) {
  if (peer.header.kind == abort_kind)
    failures_.emplace(peer.header.communicator, std::string(reinterpret_cast<const char*>(peer.body.data()), peer.body.size()));
  else
    inbox_[{peer.header.communicator, rank}].push_back({peer.header.tag, std::move(peer.body)});
  peer.body.clear();
  peer.header_bytes = peer.body_bytes = 0;
  arrivals_.fetch_add(1, std::memory_order_release);
  arrived_.notify_all();
}

void Hub::run() {
  try {
    serve();
  } catch (const std::exception& error) {  // no memory
    end_all(error.what());
  }
}

// Without the thread no message moves. The peers are told as far as that is possible, and at least see the connections end.
void Hub::end_all(const char* why) noexcept {
  try {
    abort(0, fmt::format("rank {}'s thread of messages ended: {}", rank_, why));
  } catch (const std::exception&) {  // no memory for the words, either
  }
  const std::lock_guard lock(mutex_);
  for (Peer& peer : peers_) {
    leave(peer);
    if (peer.socket.valid()) shutdown(peer.socket.get(), SHUT_RDWR);
  }
}

// At the end: until the other machines have everything, or for a while.
void Hub::serve() {
  std::chrono::steady_clock::time_point end{};
  while (true) {
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      bool open = false;
      for (Peer& peer : peers_) {
        const bool alive = peer.socket.valid() && !peer.gone;
        int unacknowledged = 0;
        if (stopping_ && alive) ioctl(peer.socket.get(), SIOCOUTQ, &unacknowledged);
        open |= alive && (!peer.outgoing.empty() || unacknowledged != 0);
        entries.push_back({alive ? peer.socket.get() : -1, static_cast<short>(peer.outgoing.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      }
      if (stopping_ && end == std::chrono::steady_clock::time_point{}) end = std::chrono::steady_clock::now() + farewell;
      if (stopping_ && (!open || std::chrono::steady_clock::now() > end)) return;
    }
    poll(entries.data(), entries.size(), end == std::chrono::steady_clock::time_point{} ? 1000 : 1);
    eventfd_t count = 0;
    eventfd_read(wake_.get(), &count);
    const std::lock_guard lock(mutex_);
    for (std::size_t index = 0; index < peers_.size(); ++index) {
      const short events = entries[index + 1].revents;
      Peer& peer = peers_[index];
      if ((events & POLLOUT) != 0) write_to(peer);
      if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      for (int reads = 0; reads < 64 && !peer.gone && read_from(static_cast<int>(index), peer);) ++reads;
    }
  }
}

const Message* Hub::front(int peer, std::uint32_t communicator) {
  const std::lock_guard lock(mutex_);
  const auto found = inbox_.find({communicator, peer});
  return found == inbox_.end() || found->second.empty() ? nullptr : &found->second.front();  // a deque's elements stay where they are
}

void Hub::pop(int peer, std::uint32_t communicator) {
  const std::lock_guard lock(mutex_);
  inbox_[{communicator, peer}].pop_front();
}

void Hub::wait(std::uint64_t seen, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, limit, [&] { return arrivals() != seen; });
}

void Hub::wake() {
  const std::lock_guard lock(mutex_);
  arrivals_.fetch_add(1, std::memory_order_release);
  arrived_.notify_all();
}

void Hub::abort(std::uint32_t communicator, const std::string& why) {
  const std::string reason = why.substr(0, longest_reason);
  Header header;
  header.communicator = communicator;
  header.kind = abort_kind;
  header.bytes = reason.size();
  std::vector<std::byte> out(sizeof header + reason.size());
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + sizeof header, reason.data(), reason.size());
  const std::lock_guard lock(mutex_);
  if (!failures_.emplace(communicator, reason).second) return;
  for (Peer& peer : peers_) put(peer, out);
  arrivals_.fetch_add(1, std::memory_order_release);
  arrived_.notify_all();
}

std::string Hub::failure(std::uint32_t communicator) {
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t id : {0u, communicator})
    if (const auto found = failures_.find(id); found != failures_.end()) return found->second;
  return "";
}

bool Hub::gone(int peer) {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<std::size_t>(peer)].gone;
}

}  // namespace baleen::tcp
