#include "launch/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/hash.h"
#include "launch/descriptor_passing.h"

namespace baleen {
namespace {

using Clock = std::chrono::steady_clock;

// What a rank says when it comes.
struct Greeting {
  std::uint64_t magic = 0x316e65656c6162;  // "baleen1"
  std::uint64_t job = 0;
  std::int32_t rank = 0, size = 0;
};

enum class Answer : std::uint8_t { welcome = 1, other_job = 2, rank_taken = 3 };

std::uint64_t job_hash(const RankEnvironment& environment) {
  return hash_bytes(environment.job.data(), environment.job.size(), static_cast<std::uint64_t>(environment.source));
}

struct Address {
  sockaddr_un value{};
  socklen_t length = 0;
};

// A leading zero byte makes the name abstract: known to this machine's kernel (network namespace) alone.
Address address_of(const RankEnvironment& environment) {
  std::array<char, 80> name{};
  const int length = std::snprintf(name.data(), name.size(), "baleen-%u-%016llx", static_cast<unsigned>(geteuid()),
                                   static_cast<unsigned long long>(job_hash(environment)));
  Address out;
  out.value.sun_family = AF_UNIX;
  std::memcpy(out.value.sun_path + 1, name.data(), static_cast<std::size_t>(length));
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
  return out;
}

Error failure(const std::string& what, const RankEnvironment& environment, ExitCode code = ExitCode::rank_failed) {
  return Error(code, what, "rank " + std::to_string(environment.rank) + ", started by " + rank_source_name(environment.source),
               "start all ranks together with one command on one machine");
}

Descriptor local_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

bool same_user(int connection) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// True when `descriptor` becomes readable before the deadline.
bool readable_by(int descriptor, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{descriptor, POLLIN, 0};
    const int got = poll(&entry, 1, static_cast<int>(std::clamp<long long>(left, 0, 1000)));
    if (got > 0) return true;
    if (got < 0 && errno != EINTR) return false;
    if (got == 0 && left <= 0) return false;
  }
}

// One byte of answer, with the region's descriptor attached where it is a welcome.
void send_answer(int connection, Answer answer, int region) {
  send_with_descriptor(connection, static_cast<char>(answer),
                       answer == Answer::welcome ? region : -1);  // a rank that is gone again is missed by the deadline
}

struct Received {
  Answer answer{};
  Descriptor region;
};

Received receive_answer(int connection, const RankEnvironment& environment) {
  auto received = receive_with_descriptor(connection);
  if (!received) throw failure("rank 0 hung up before it handed out the shared memory", environment);
  return {static_cast<Answer>(received->byte), std::move(received->descriptor)};
}

std::string list_missing(const std::vector<bool>& here) {
  std::string out;
  for (std::size_t rank = 0; rank < here.size(); ++rank)
    if (!here[rank]) out += (out.empty() ? "" : ", ") + std::to_string(rank);
  return out;
}

// Takes one visitor's greeting and answers it.
void welcome(const Descriptor& connection, const RankEnvironment& environment, int region, Clock::time_point deadline,
             std::vector<bool>& here) {
  if (!same_user(connection.get())) return;
  // Whoever connects speaks at once; a silent visitor must not use up the others' time.
  if (!readable_by(connection.get(), std::min(deadline, Clock::now() + std::chrono::seconds(2)))) return;
  Greeting greeting;
  greeting.magic = 0;
  if (recv(connection.get(), &greeting, sizeof greeting, 0) != sizeof greeting || greeting.magic != Greeting().magic) return;
  Answer answer = Answer::welcome;
  if (greeting.job != job_hash(environment) || greeting.size != environment.size || greeting.rank < 0 || greeting.rank >= environment.size)
    answer = Answer::other_job;
  else if (here[static_cast<std::size_t>(greeting.rank)])
    answer = Answer::rank_taken;
  send_answer(connection.get(), answer, region);
  if (answer == Answer::welcome) here[static_cast<std::size_t>(greeting.rank)] = true;
}

std::shared_ptr<SharedRegion> hand_out(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const Address address = address_of(environment);
  const Descriptor listener = local_socket();
  if (!listener.valid()) throw failure(std::string("cannot open a local socket: ") + std::strerror(errno), environment);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) != 0)
    throw failure(errno == EADDRINUSE ? "another rank 0 of the same job identity (\"" + environment.job + "\") is running on this machine"
                                      : std::string("cannot name a local socket: ") + std::strerror(errno),
                  environment, ExitCode::bad_config);
  if (listen(listener.get(), 128) != 0) throw failure(std::string("cannot listen on a local socket: ") + std::strerror(errno), environment);

  auto region = SharedRegion::create(environment.size, true);
  std::vector<bool> here(static_cast<std::size_t>(environment.size), false);
  here[0] = true;
  const Clock::time_point deadline = Clock::now() + timeout;
  while (std::find(here.begin(), here.end(), false) != here.end()) {
    if (!readable_by(listener.get(), deadline) || Clock::now() >= deadline) {
      const std::string missing = list_missing(here);
      region->abort_cell().raise("ranks that did not come to the rendezvous: " + missing);
      throw failure("waited " + std::to_string(timeout.count() / 1000) + " s for ranks that did not come: " + missing, environment);
    }
    const Descriptor connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.valid())
      welcome(connection, environment, region->descriptor(), deadline, here);
    else if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN)
      throw failure(std::string("cannot take a rank's connection: ") + std::strerror(errno), environment);
  }
  region->close_descriptor();
  return region;
}

std::shared_ptr<SharedRegion> fetch(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  const Address address = address_of(environment);
  const Clock::time_point deadline = Clock::now() + timeout;
  Descriptor connection;
  while (true) {
    connection = local_socket();
    if (!connection.valid()) throw failure(std::string("cannot open a local socket: ") + std::strerror(errno), environment);
    if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address.value), address.length) == 0) break;
    // Rank 0 may not be up yet.
    if (Clock::now() >= deadline)
      throw failure("waited " + std::to_string(timeout.count() / 1000) + " s for rank 0, which did not come (or is in another container)",
                    environment);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!same_user(connection.get()))
    throw failure("the process that answers for rank 0 belongs to another user", environment, ExitCode::bad_config);
  Greeting greeting;
  greeting.job = job_hash(environment);
  greeting.rank = environment.rank;
  greeting.size = environment.size;
  if (send(connection.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting || !readable_by(connection.get(), deadline))
    throw failure("rank 0 does not answer", environment);
  Received received = receive_answer(connection.get(), environment);
  if (received.answer == Answer::other_job)
    throw failure("rank 0 was started with other variables (job identity or world size) than this rank", environment, ExitCode::bad_config);
  if (received.answer == Answer::rank_taken)
    throw failure("another process has come as rank " + std::to_string(environment.rank), environment, ExitCode::bad_config);
  if (!received.region.valid()) throw failure("rank 0 handed out no shared memory", environment);
  return SharedRegion::attach(std::move(received.region), environment.size);
}

}  // namespace

std::shared_ptr<SharedRegion> share_region(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  BALEEN_CHECK(environment.size > 1, environment.size);
  return environment.rank == 0 ? hand_out(environment, timeout) : fetch(environment, timeout);
}

}  // namespace baleen
