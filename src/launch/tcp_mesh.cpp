#include "launch/tcp_mesh.h"

#include <netinet/tcp.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "launch/handshake.h"
#include "launch/tcp_socket.h"

namespace baleen {
namespace {

using Clock = std::chrono::steady_clock;

Error failure(const TcpMeeting& meeting, const std::string& what) {
  return Error(ExitCode::rank_failed, what, "rank " + std::to_string(meeting.rank) + " of " + std::to_string(meeting.size),
               "every rank must be able to reach every other by the address from which it reaches MASTER_ADDR; look for firewalls");
}

in_port_t& port_of(SocketAddress& address) {
  return address.value.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address.value)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address.value)->sin_port;
}

// The address of this machine on the way to rank 0, with port 0.
SocketAddress own_address(const TcpMeeting& meeting) {
  std::string why;
  for (const SocketAddress& host : resolve(meeting.address, meeting.port, why)) {
    const Descriptor probe(socket(host.value.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // sends nothing: only asks for the route
    SocketAddress own;
    own.length = sizeof own.value;
    if (!probe.valid() || connect(probe.get(), reinterpret_cast<const sockaddr*>(&host.value), host.length) != 0 ||
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own.value), &own.length) != 0)
      continue;
    port_of(own) = 0;
    return own;
  }
  throw failure(meeting, "there is no way to " + meeting.address + (why.empty() ? "" : ": " + why));
}

// Talks until the handshake is through or has failed. `take` feeds it what came.
template <class Handshake>
bool talk(const Descriptor& connection, Handshake& handshake, std::string outgoing, Clock::time_point until,
          const std::function<bool(std::string&)>& after_each) {
  while (true) {
    if (!after_each(outgoing)) return false;
    if (!outgoing.empty()) {
      const ssize_t sent = send(connection.get(), outgoing.data(), outgoing.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent > 0) outgoing.erase(0, static_cast<std::size_t>(sent));
    }
    if (outgoing.empty() && handshake.state() == HandshakeState::complete) return true;
    if (Clock::now() > until) return false;
    pollfd entry{connection.get(), static_cast<short>(outgoing.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    poll(&entry, 1, 50);
    std::array<std::byte, 1> bytes;  // what comes right behind the last message belongs to the caller
    const ssize_t got = recv(connection.get(), bytes.data(), bytes.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) handshake.take({bytes.data(), static_cast<std::size_t>(got)}, outgoing);
    if (handshake.state() == HandshakeState::refused) return false;
  }
}

// Listens on any free port of `address` but the one where rank 0 wants to be met: it may be on this machine, too.
Descriptor listen_anywhere(const TcpMeeting& meeting, const SocketAddress& address) {
  std::vector<Descriptor> unwanted;
  while (true) {
    Descriptor listener = listen_on(address);
    if (!listener.valid()) throw failure(meeting, "cannot listen on " + address.text() + ": " + std::strerror(errno));
    SocketAddress own = own_of(listener.get());
    if (ntohs(port_of(own)) != meeting.port) return listener;
    unwanted.push_back(std::move(listener));  // held meanwhile: the next is another
  }
}

class Mesh {
 public:
  explicit Mesh(const TcpMeeting& meeting)
      : meeting_(meeting),
        key_(derive_key(meeting.secret.value_or(""))),
        own_(make_claims(meeting.rank, meeting.size, meeting.job, meeting.build)),
        deadline_(Clock::now() + meeting.timeout),
        peers_(static_cast<std::size_t>(meeting.size)) {}

  std::vector<Descriptor> connect_all() {
    const Descriptor listener = listen_anywhere(meeting_, own_address(meeting_));
    const SocketAddress address = own_of(listener.get());
    std::string own(reinterpret_cast<const char*>(&address.value), address.length);
    const std::vector<std::string> all = meet(meeting_, own);
    deadline_ = Clock::now() + meeting_.timeout;
    for (int rank = 0; rank < meeting_.rank; ++rank) call(rank, all[static_cast<std::size_t>(rank)]);
    for (int missing = meeting_.size - 1 - meeting_.rank; missing > 0;)
      if (answer(listener)) --missing;
    const int one = 1;
    for (const Descriptor& peer : peers_)
      if (peer.valid()) setsockopt(peer.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return std::move(peers_);
  }

 private:
  Descriptor& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void call(int rank, const std::string& where) {
    SocketAddress address;
    if (where.size() > sizeof address.value) throw failure(meeting_, "rank " + std::to_string(rank) + " gave no address");
    std::memcpy(&address.value, where.data(), where.size());
    address.length = static_cast<socklen_t>(where.size());
    std::string why = "it does not know this job's secret, or does not answer";
    while (Clock::now() < deadline_) {
      Descriptor connection = connect_to(address, std::chrono::milliseconds(1000), why);
      if (!connection.valid()) continue;
      ClientHandshake handshake(key_, own_, fresh_nonce(), "");
      if (!talk(connection, handshake, handshake.hello(), std::min(deadline_, Clock::now() + meeting_.patience),
                [](std::string&) { return true; }))
        continue;
      peer(rank) = std::move(connection);
      return;
    }
    throw failure(meeting_, "rank " + std::to_string(rank) + " at " + address.text() + " cannot be reached: " + why);
  }

  // Takes one visitor; true when it was a rank that was missing.
  bool answer(const Descriptor& listener) {
    pollfd entry{listener.get(), POLLIN, 0};
    if (Clock::now() > deadline_) {
      std::string missing;
      for (int rank = meeting_.rank + 1; rank < meeting_.size; ++rank)
        if (!peer(rank).valid()) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      throw failure(meeting_, "ranks that did not connect: " + missing);
    }
    if (poll(&entry, 1, 50) <= 0) return false;
    Descriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) return false;
    ServerHandshake handshake(key_, own_, fresh_nonce());
    bool told = false;
    // A stranger may take up no more than its patience, and the ranks keep calling.
    const bool through =
        talk(connection, handshake, "", std::min(deadline_, Clock::now() + std::chrono::milliseconds(1000)), [&](std::string& outgoing) {
          const int rank = handshake.claims().rank;
          if (handshake.state() == HandshakeState::proven) {
            const bool expected = rank > meeting_.rank && rank < meeting_.size && !peer(rank).valid();
            handshake.decide(!expected, outgoing);
          }
          if (handshake.state() == HandshakeState::complete && !told) {
            outgoing += handshake.everybody("");
            told = true;
          }
          return handshake.state() != HandshakeState::refused;
        });
    if (!through) {
      log::warning("rank {}: turned away {}: {}", meeting_.rank, peer_of(connection.get()).text(),
                   handshake.why().empty() ? "says nothing, or too slowly" : handshake.why());
      return false;
    }
    peer(handshake.claims().rank) = std::move(connection);
    return true;
  }

  const TcpMeeting& meeting_;
  JobKey key_;
  RankClaims own_;
  Clock::time_point deadline_;
  std::vector<Descriptor> peers_;
};

}  // namespace

std::vector<Descriptor> connect_mesh(const TcpMeeting& meeting) {
  return Mesh(meeting).connect_all();
}

}  // namespace baleen
