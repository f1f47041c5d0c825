#include "launch/tcp_rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "launch/handshake.h"
#include "launch/tcp_socket.h"

namespace baleen {
namespace {

using Clock = std::chrono::steady_clock;

// Strangers that may be talking at once; beyond it the one that has talked longest makes room. A rank needs its connection for
// milliseconds.
constexpr std::size_t most_strangers = 512;

std::string where(const TcpMeeting& m) {
  return "rendezvous at " + m.address + ":" + std::to_string(m.port) + ", rank " + std::to_string(m.rank) + " of " + std::to_string(m.size);
}

int milliseconds_until(Clock::time_point deadline, int most) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left + 1, 0, most));
}

// How long rank 0 waits for its port when another has it: a job that is just ending, or a connection that went out from there.
constexpr auto port_patience = std::chrono::seconds(1);

// Rank 0 among its visitors.
class Host {
 public:
  Host(const TcpMeeting& meeting, const std::string& payload)
      : meeting_(meeting),
        key_(derive_key(meeting.secret.value_or(""))),
        own_(make_claims(0, meeting.size, meeting.job, meeting.build)),
        payloads_(static_cast<std::size_t>(meeting.size)),
        here_(static_cast<std::size_t>(meeting.size), false) {
    payloads_[0] = payload;
    here_[0] = true;
    bind_all();
  }

  std::vector<std::string> run() {
    const auto deadline = Clock::now() + meeting_.timeout;
    while (std::find(here_.begin(), here_.end(), false) != here_.end()) {
      if (Clock::now() >= deadline) fail_missing();
      wait(deadline);
    }
    hand_out(deadline);
    return payloads_;
  }

 private:
  struct Visitor {
    Descriptor connection;
    std::string peer;
    ServerHandshake handshake;
    Clock::time_point until;
    std::string outgoing = {};
    bool stranger = true, gone = false;
  };

  void bind_all() {
    std::string why;
    const auto addresses = resolve(meeting_.address, meeting_.port, why);
    if (addresses.empty())
      throw Error(ExitCode::bad_config, "rank 0's address cannot be resolved: " + why, where(meeting_),
                  "set MASTER_ADDR to a name or number of rank 0's host");
    const auto until = Clock::now() + port_patience;
    for (const SocketAddress& address : addresses) {
      Descriptor listener = listen_on(address);
      while (!listener.valid() && errno == EADDRINUSE && Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        listener = listen_on(address);
      }
      if (listener.valid())
        listeners_.push_back(std::move(listener));
      else
        why = address.text() + ": " + std::strerror(errno);
    }
    if (listeners_.empty())
      throw Error(
          ExitCode::bad_config, "rank 0 cannot listen on " + why, where(meeting_),
          "MASTER_ADDR must be an address of rank 0's host and the port be free: another job may have it (BALEEN_PORT names another)");
  }

  void wait(Clock::time_point deadline) {
    std::vector<pollfd> entries;
    for (const Descriptor& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    for (const Visitor& visitor : visitors_)
      entries.push_back({visitor.connection.get(), static_cast<short>(visitor.outgoing.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    if (poll(entries.data(), entries.size(), milliseconds_until(deadline, 100)) < 0 && errno != EINTR)
      throw Error(ExitCode::rank_failed, std::string("poll: ") + std::strerror(errno), where(meeting_));
    std::size_t index = listeners_.size();
    for (Visitor& visitor : visitors_) serve(visitor, entries[index++].revents);
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      if (entries[i].revents != 0) welcome(listeners_[i]);
    const auto now = Clock::now();
    for (Visitor& visitor : visitors_)
      if (!visitor.gone && now > visitor.until && visitor.handshake.state() != HandshakeState::complete)
        turn_away(visitor, "says nothing, or too slowly");
    visitors_.remove_if([](const Visitor& visitor) { return visitor.gone; });
  }

  void welcome(const Descriptor& listener) {
    for (int each = 0; each < 64; ++each) {  // then others are looked after
      Descriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!connection.valid()) {
        if (errno == EMFILE || errno == ENFILE) make_room(0);
        return;
      }
      make_room(most_strangers - 1);
      std::string peer = peer_of(connection.get()).text();
      visitors_.push_back(
          {std::move(connection), std::move(peer), ServerHandshake(key_, own_, fresh_nonce()), Clock::now() + meeting_.patience});
    }
  }

  // The list is in the order of arrival.
  void make_room(std::size_t most) {
    const auto stranger = [](const Visitor& visitor) { return visitor.stranger && !visitor.gone; };
    if (static_cast<std::size_t>(std::count_if(visitors_.begin(), visitors_.end(), stranger)) <= most) return;
    turn_away(*std::find_if(visitors_.begin(), visitors_.end(), stranger), "makes room for others: too many strangers at once");
  }

  void turn_away(Visitor& visitor, const std::string& why) {
    if (!visitor.stranger && visitor.handshake.why().empty()) {
      here_[static_cast<std::size_t>(visitor.handshake.claims().rank)] = false;
      log::warning("rendezvous: rank {} at {} left again: {}", visitor.handshake.claims().rank, visitor.peer, why);
    } else {
      log::warning("rendezvous: turned away {}: {}", visitor.peer, why);
    }
    visitor.gone = true;
    visitor.connection.reset();
  }

  void serve(Visitor& visitor, short events) {
    if (visitor.gone || events == 0) return;
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !read_from(visitor)) return;
    write_to(visitor);
  }

  bool read_from(Visitor& visitor) {
    std::array<std::byte, 8192> bytes;
    const ssize_t got = recv(visitor.connection.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) {
      turn_away(visitor, "hung up before it was through");
      return false;
    }
    if (visitor.handshake.state() == HandshakeState::complete) return true;  // has nothing more to say
    visitor.handshake.take({bytes.data(), static_cast<std::size_t>(got)}, visitor.outgoing);
    if (visitor.handshake.state() == HandshakeState::proven) {
      const int rank = visitor.handshake.claims().rank;
      const bool known = rank >= 0 && rank < meeting_.size;
      if (visitor.handshake.decide(known && here_[static_cast<std::size_t>(rank)], visitor.outgoing) == Verdict::welcome) {
        here_[static_cast<std::size_t>(rank)] = true;
        visitor.stranger = false;
      }
    }
    if (visitor.handshake.state() == HandshakeState::complete)
      payloads_[static_cast<std::size_t>(visitor.handshake.claims().rank)] = visitor.handshake.payload();
    if (visitor.handshake.state() == HandshakeState::refused) {
      write_to(visitor);  // a verdict says why; a stranger gets no word
      turn_away(visitor, visitor.handshake.why());
      return false;
    }
    return true;
  }

  static void write_to(Visitor& visitor) {
    if (visitor.outgoing.empty() || visitor.gone) return;
    const ssize_t sent = send(visitor.connection.get(), visitor.outgoing.data(), visitor.outgoing.size(), MSG_NOSIGNAL);
    if (sent > 0) visitor.outgoing.erase(0, static_cast<std::size_t>(sent));
  }

  // A rank is here when its payload is; then everybody gets everybody's.
  void hand_out(Clock::time_point deadline) {
    const auto unfinished = [](const Visitor& visitor) {
      return !visitor.stranger && !visitor.gone && visitor.handshake.state() != HandshakeState::complete;
    };
    while (std::any_of(visitors_.begin(), visitors_.end(), unfinished) || std::find(here_.begin(), here_.end(), false) != here_.end()) {
      if (Clock::now() >= deadline) fail_missing();
      wait(deadline);
    }
    std::string all;
    for (const std::string& payload : payloads_) {
      const auto length = static_cast<std::uint32_t>(payload.size());
      all.append(reinterpret_cast<const char*>(&length), sizeof length) += payload;
    }
    for (Visitor& visitor : visitors_)
      if (!visitor.stranger) visitor.outgoing += visitor.handshake.everybody(all);
    const auto pending = [](const Visitor& visitor) { return !visitor.stranger && !visitor.gone && !visitor.outgoing.empty(); };
    while (std::any_of(visitors_.begin(), visitors_.end(), pending)) {
      for (Visitor& visitor : visitors_) write_to(visitor);
      if (Clock::now() >= deadline) throw Error(ExitCode::rank_failed, "not all ranks take what rank 0 tells them", where(meeting_));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  [[noreturn]] void fail_missing() const {
    std::string missing;
    for (std::size_t rank = 0; rank < here_.size(); ++rank)
      if (!here_[rank]) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    throw Error(ExitCode::rank_failed,
                "waited " + std::to_string(meeting_.timeout.count() / 1000) + " s for ranks that did not come: " + missing, where(meeting_),
                "look at their output; all ranks need the same MASTER_ADDR, port, secret and build");
  }

  const TcpMeeting& meeting_;
  JobKey key_;
  RankClaims own_;
  std::vector<std::string> payloads_;
  std::vector<bool> here_;
  std::vector<Descriptor> listeners_;
  std::list<Visitor> visitors_;
};

std::vector<std::string> split_payloads(const std::string& all, const TcpMeeting& meeting) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < all.size();) {
    std::uint32_t length = 0;
    if (all.size() - at >= sizeof length) std::memcpy(&length, all.data() + at, sizeof length);
    at += sizeof length;
    if (at > all.size() || all.size() - at < length) break;
    out.push_back(all.substr(at, length));
    at += length;
  }
  if (out.size() != static_cast<std::size_t>(meeting.size))
    throw Error(ExitCode::rank_failed, "rank 0 tells of another number of ranks", where(meeting));
  return out;
}

// One visit to rank 0: the payloads, or why it came to nothing and may be tried again.
std::optional<std::string> visit(const TcpMeeting& meeting, const JobKey& key, const std::string& payload, Clock::time_point deadline,
                                 std::string& why) {
  std::string problem;
  const auto addresses = resolve(meeting.address, meeting.port, problem);
  Descriptor connection;
  for (const SocketAddress& address : addresses) {
    connection = connect_to(address, std::chrono::milliseconds(milliseconds_until(deadline, 5000)), problem);
    if (connection.valid()) break;
  }
  if (!connection.valid()) {
    why = problem;
    return std::nullopt;
  }
  ClientHandshake handshake(key, make_claims(meeting.rank, meeting.size, meeting.job, meeting.build), fresh_nonce(), payload);
  std::string outgoing = handshake.hello();
  auto until = std::min(deadline, Clock::now() + meeting.patience);
  while (true) {
    pollfd entry{connection.get(), static_cast<short>(outgoing.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    if (poll(&entry, 1, milliseconds_until(until, 1000)) < 0 && errno != EINTR) return std::nullopt;
    if (!outgoing.empty())
      if (const ssize_t sent = send(connection.get(), outgoing.data(), outgoing.size(), MSG_NOSIGNAL); sent > 0)
        outgoing.erase(0, static_cast<std::size_t>(sent));
    std::array<std::byte, 65536> bytes;
    const ssize_t got = recv(connection.get(), bytes.data(), bytes.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      if (handshake.state() == HandshakeState::proven)  // it knows who comes: there is nothing to try again
        throw Error(ExitCode::rank_failed, "rank 0 let this rank in and hung up before all ranks had come", where(meeting),
                    "look at rank 0's output: it names the ranks that were missing, or why it ended");
      why = "rank 0 hung up: it does not know this rank's secret, or is too busy";
      return std::nullopt;
    }
    if (got > 0) {
      const auto before = handshake.state();
      handshake.take({bytes.data(), static_cast<std::size_t>(got)}, outgoing);
      if (handshake.state() == HandshakeState::complete) return handshake.payloads();
      if (handshake.state() == HandshakeState::proven && before != HandshakeState::proven) until = deadline;  // the others may take longer
      if (handshake.state() == HandshakeState::refused) {
        if (handshake.verdict() != Verdict::welcome)
          throw Error(ExitCode::bad_config, "rank 0 turned this rank away: " + verdict_text(handshake.verdict()), where(meeting),
                      "start all ranks of a job with one command, one build of baleen and one world size");
        why = "what answers there " + handshake.why();
        return std::nullopt;
      }
    }
    if (Clock::now() >= until) {
      why = handshake.state() == HandshakeState::proven ? "rank 0 let this rank in, but not all ranks came"
                                                        : "what answers there says nothing";
      return std::nullopt;
    }
  }
}

std::vector<std::string> go_to_host(const TcpMeeting& meeting, const std::string& payload) {
  const auto deadline = Clock::now() + meeting.timeout;
  const JobKey key = derive_key(meeting.secret.value_or(""));
  std::string why = "nobody answers";
  while (true) {
    if (const auto all = visit(meeting, key, payload, deadline, why)) return split_payloads(*all, meeting);
    if (Clock::now() >= deadline)
      throw Error(ExitCode::rank_failed, "waited " + std::to_string(meeting.timeout.count() / 1000) + " s for rank 0: " + why,
                  where(meeting), "look at rank 0's output; all ranks need the same MASTER_ADDR, port, secret and build");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void check_secret(const TcpMeeting& meeting) {
  if (meeting.secret) return;
  std::string why;
  for (const SocketAddress& address : resolve(meeting.address, meeting.port, why))
    if (!address.loopback())
      throw Error(ExitCode::bad_config,
                  meeting.address + " can be reached from other machines, and this job has no secret to tell its ranks from strangers",
                  where(meeting),
                  std::string("set ") + secret_file_variable +
                      " to a file of mode 600 with the same 16 or more random bytes on every host, or " + secret_descriptor_variable +
                      " to an open descriptor");
}

// Debian's /etc/hosts gives a host's own name the address 127.0.1.1: rank 0 would listen where no other host can reach it. A number is
// meant.
void check_reachable(const RankEnvironment& environment, const TcpMeeting& meeting) {
  const bool several_hosts = environment.local_size > 0 && environment.local_size != environment.size;
  if (!several_hosts || is_number(meeting.address)) return;
  std::string why;
  const auto addresses = resolve(meeting.address, meeting.port, why);
  if (addresses.empty() || !std::all_of(addresses.begin(), addresses.end(), [](const SocketAddress& each) { return each.loopback(); }))
    return;
  throw Error(ExitCode::bad_config,
              "the ranks are on several machines, and on this one \"" + meeting.address + "\" is the loopback address " +
                  addresses.front().text() + ", which the others cannot reach",
              "environment variable MASTER_ADDR",
              "take that name out of the line with 127. in /etc/hosts, or set MASTER_ADDR to the number of rank 0's host in the network");
}

}  // namespace

TcpMeeting meeting_of(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const auto variable = [](const char* name) { return std::string(std::getenv(name) != nullptr ? std::getenv(name) : ""); };
  TcpMeeting out;
  out.address = variable("MASTER_ADDR");
  if (out.address.empty())
    throw Error(ExitCode::bad_config, "the ranks are on several machines and nothing says where rank 0 is",
                "environment variable MASTER_ADDR",
                "set MASTER_ADDR and MASTER_PORT to an address of rank 0's host and a free port (torchrun does)");
  const std::string own = variable("BALEEN_PORT"), port = own.empty() ? variable("MASTER_PORT") : own;
  int number = port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != std::string::npos ? 0 : std::stoi(port);
  if (own.empty() && number != 0 && variable("TORCHELASTIC_USE_AGENT_STORE") == "True") ++number;
  if (number < 1 || number > 65535)
    throw Error(ExitCode::bad_config, "\"" + port + "\" is no port",
                own.empty() ? "environment variable MASTER_PORT" : "environment variable BALEEN_PORT", "use 1 to 65535");
  out.port = static_cast<std::uint16_t>(number);
  out.rank = environment.rank;
  out.size = environment.size;
  check_reachable(environment, out);
  out.job = environment.job;
  out.build = build_identity();
  out.secret = read_job_secret();
  out.timeout = timeout;
  return out;
}

std::vector<std::string> meet(const TcpMeeting& meeting, const std::string& payload) {
  BALEEN_CHECK(meeting.size >= 1 && meeting.rank >= 0 && meeting.rank < meeting.size, meeting.rank, meeting.size);
  BALEEN_CHECK(payload.size() <= largest_payload, payload.size());
  check_secret(meeting);
  if (meeting.size == 1) return {payload};
  return meeting.rank == 0 ? Host(meeting, payload).run() : go_to_host(meeting, payload);
}

std::string build_identity() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::vector<char> block(std::size_t{1} << 20);
  StreamHash hash;
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0)
    hash.update(block.data(), static_cast<std::size_t>(file.gcount()));
  return "baleen 0.1.0 " + hash.hex();
}

}  // namespace baleen
