// The rendezvous over TCP among friends and under attack. Threads stand for processes: each has its own connection.
#include "launch/tcp_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <optional>
#include <random>
#include <thread>

#include "base/error.h"
#include "launch/handshake.h"
#include "launch/rank_programs.h"
#include "launch/tcp_socket.h"
#include "support/reserved_port.h"

namespace baleen {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const std::string secret = "a secret of more than sixteen bytes";

struct Outcome {
  std::vector<std::string> payloads;
  std::optional<Error> failure;
};

class TcpRendezvous : public ::testing::Test {
 protected:
  TcpMeeting rank(int rank, int size) const {
    TcpMeeting out;
    out.address = "127.0.0.1";
    out.port = port;
    out.rank = rank;
    out.size = size;
    out.job = "job";
    out.build = "build";
    out.secret = secret;
    out.timeout = std::chrono::seconds(20);
    return out;
  }
  static Outcome come(const TcpMeeting& meeting) {
    try {
      return {meet(meeting, "payload of " + std::to_string(meeting.rank)), std::nullopt};
    } catch (const Error& error) {
      return {{}, error};
    }
  }
  static std::future<Outcome> start(const TcpMeeting& meeting) {
    return std::async(std::launch::async, [meeting] { return come(meeting); });
  }
  // A connection to rank 0 that follows no protocol.
  Descriptor intrude() const {
    std::string why;
    for (int attempt = 0; attempt < 500; ++attempt) {
      Descriptor connection = connect_to(resolve("127.0.0.1", port, why).front(), milliseconds(1000), why);
      if (connection.valid()) return connection;
      std::this_thread::sleep_for(milliseconds(10));
    }
    ADD_FAILURE() << "nobody listens: " << why;
    return Descriptor();
  }
  static void say(const Descriptor& connection, const std::string& words) {
    static_cast<void>(send(connection.get(), words.data(), words.size(), MSG_NOSIGNAL));
  }
  // What comes within a second; empty when the other side hangs up or says nothing.
  static std::string hear(const Descriptor& connection) {
    pollfd entry{connection.get(), POLLIN, 0};
    if (poll(&entry, 1, 1000) <= 0) return "";
    std::string out(4096, '\0');
    const ssize_t got = recv(connection.get(), out.data(), out.size(), 0);
    out.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return out;
  }
  static std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

  // Both ranks of a job of two are let in although `attack` goes on; returns what was logged.
  std::string meeting_survives(const std::function<void()>& attack) {
    ::testing::internal::CaptureStderr();
    auto zero = start(rank(0, 2));
    attack();
    const Outcome one = come(rank(1, 2)), host = zero.get();
    std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_FALSE(host.failure) << host.failure->what();
    EXPECT_FALSE(one.failure) << one.failure->what();
    const std::vector<std::string> wanted{"payload of 0", "payload of 1"};
    EXPECT_EQ(host.payloads, wanted);
    EXPECT_EQ(one.payloads, wanted);
    return log;
  }

  const testing::ReservedPort reserved;
  const std::uint16_t port = reserved.number();
};

TEST_F(TcpRendezvous, EverybodyGetsEverybodysPayload) {
  const std::size_t descriptors = testing::open_descriptors();
  std::vector<std::future<Outcome>> ranks;
  for (int r = 7; r >= 0; --r) ranks.push_back(start(rank(r, 8)));
  for (auto& future : ranks) {
    const Outcome outcome = future.get();
    ASSERT_FALSE(outcome.failure) << outcome.failure->what();
    ASSERT_EQ(outcome.payloads.size(), 8u);
    for (std::size_t r = 0; r < 8; ++r) EXPECT_EQ(outcome.payloads[r], "payload of " + std::to_string(r));
  }
  EXPECT_EQ(testing::open_descriptors(), descriptors);
}

TEST_F(TcpRendezvous, MissingRanksAreNamedWithinTheDeadline) {
  TcpMeeting zero = rank(0, 4), two = rank(2, 4);
  zero.timeout = milliseconds(1500);
  two.timeout = std::chrono::seconds(30);  // the host's is over first, whoever began first
  auto second = start(two);
  const auto begin = std::chrono::steady_clock::now();
  const Outcome host = come(zero);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  ASSERT_TRUE(host.failure);
  EXPECT_EQ(host.failure->code(), ExitCode::rank_failed);
  EXPECT_THAT(host.failure->what(), HasSubstr("did not come: 1, 3"));
  // Who had come hears of it at once.
  const Outcome other = second.get();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  ASSERT_TRUE(other.failure);
  EXPECT_EQ(other.failure->code(), ExitCode::rank_failed);
  EXPECT_THAT(other.failure->what(), HasSubstr("hung up before all ranks had come"));
}

TEST_F(TcpRendezvous, WhoDoesNotBelongIsToldWhy) {
  auto zero = start(rank(0, 3));
  const auto refused = [&](TcpMeeting meeting, const std::string& why) {
    const Outcome outcome = come(meeting);
    ASSERT_TRUE(outcome.failure) << why;
    EXPECT_EQ(outcome.failure->code(), ExitCode::bad_config);
    EXPECT_THAT(outcome.failure->what(), HasSubstr(why));
  };
  TcpMeeting other = rank(1, 3);
  other.job = "another job";
  refused(other, "another job");
  other = rank(1, 3);
  other.build = "older build";
  refused(other, "another version or build");
  refused(rank(1, 4), "another number of ranks");
  auto one = start(rank(1, 3));
  std::this_thread::sleep_for(milliseconds(300));
  refused(rank(1, 3), "another process has come as that rank");
  EXPECT_FALSE(come(rank(2, 3)).failure);
  EXPECT_FALSE(one.get().failure);
  EXPECT_FALSE(zero.get().failure);
}

TEST_F(TcpRendezvous, AnotherSecretDoesNotComeIn) {
  const std::string log = meeting_survives([&] {
    TcpMeeting other = rank(1, 2);
    other.secret = "a secret of somebody else entirely";
    other.timeout = milliseconds(300);
    const Outcome outcome = come(other);
    ASSERT_TRUE(outcome.failure);
    EXPECT_EQ(outcome.failure->code(), ExitCode::rank_failed);
    EXPECT_THAT(outcome.failure->what(), HasSubstr("secret"));
  });
  EXPECT_THAT(log, HasSubstr("turned away 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("does not know this job's secret"));
}

TEST_F(TcpRendezvous, ASecondJobOnThePortIsNamedAndDisturbsNobody) {
  meeting_survives([&] {
    intrude();  // the first is up
    TcpMeeting second = rank(0, 2);
    const Outcome outcome = come(second);
    ASSERT_TRUE(outcome.failure);
    EXPECT_EQ(outcome.failure->code(), ExitCode::bad_config);
    EXPECT_THAT(outcome.failure->what(), HasSubstr("another job may have it"));
  });
}

TEST_F(TcpRendezvous, GarbageProbesAndHalfOpenConnectionsAreTurnedAway) {
  std::mt19937 random(20261129);
  const std::string log = meeting_survives([&] {
    std::vector<Descriptor> silent;
    for (const std::string& probe :
         {std::string("GET / HTTP/1.0\r\n\r\n"), std::string("\x16\x03\x01\x02", 4), std::string("OPTIONS * SIP/2.0\r\n"),
          std::string("BAL1\x01\x00\xff\xff\xff\x7f", 10), std::string(100'000, 'x'), std::string("BAL1")}) {
      const Descriptor visitor = intrude();
      say(visitor, probe);
      if (probe.size() > 4) {
        EXPECT_EQ(hear(visitor), "") << probe.substr(0, 20);
      }
    }
    for (int i = 0; i < 200; ++i) {
      std::string noise(random() % 300, '\0');
      for (char& c : noise) c = static_cast<char>(random());
      if (random() % 2 == 0) noise = "BAL1" + noise;
      say(intrude(), noise);
    }
    for (int i = 0; i < 20; ++i) silent.push_back(intrude());
    intrude();  // comes and goes
  });
  EXPECT_THAT(log, HasSubstr("does not speak this protocol"));
  EXPECT_THAT(log, HasSubstr("sends a message of 2147483647 bytes where at most 32 are allowed"));
  EXPECT_THAT(log, HasSubstr("hung up before it was through"));
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST_F(TcpRendezvous, AFloodOfSilentConnectionsKeepsNobodyOut) {
  std::vector<Descriptor> flood;
  const std::size_t before = resident_bytes();
  const std::string log = meeting_survives([&] {
    for (int i = 0; i < 1000; ++i) flood.push_back(intrude());
  });
  EXPECT_LT(resident_bytes(), before + (std::size_t{16} << 20));
  EXPECT_THAT(log, HasSubstr("too many strangers at once"));
}

TEST_F(TcpRendezvous, SilenceEndsAfterItsTime) {
  ::testing::internal::CaptureStderr();
  TcpMeeting zero = rank(0, 2);
  zero.patience = milliseconds(200);
  auto host = start(zero);
  const Descriptor silent = intrude(), slow = intrude();
  say(slow, "BA");
  std::this_thread::sleep_for(milliseconds(600));
  EXPECT_EQ(recv(silent.get(), nullptr, 0, MSG_DONTWAIT), 0);
  char byte = 0;
  EXPECT_LE(recv(slow.get(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_FALSE(come(rank(1, 2)).failure);
  EXPECT_FALSE(host.get().failure);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("says nothing, or too slowly"));
}

// What a rank said when it was let in, said again on a new connection: the new challenge is another one.
TEST_F(TcpRendezvous, AReplayedProofIsWorthNothing) {
  const JobKey key = derive_key(secret);
  const RankClaims claims = make_claims(1, 2, "job", "build");
  const Nonce mine = fresh_nonce();
  std::string heard;
  ServerHandshake overheard(key, make_claims(0, 2, "job", "build"), fresh_nonce());
  ClientHandshake friendly(key, claims, mine, "payload");
  std::string challenge, proof, verdict;
  overheard.take(bytes(friendly.hello()), challenge);
  friendly.take(bytes(challenge), proof);
  ASSERT_EQ(overheard.take(bytes(proof), verdict), HandshakeState::proven);  // there it was good
  const std::string log = meeting_survives([&] {
    const Descriptor visitor = intrude();
    say(visitor, friendly.hello());
    EXPECT_EQ(hear(visitor).size(), challenge.size());
    say(visitor, proof);
    EXPECT_EQ(hear(visitor), "");
  });
  EXPECT_THAT(log, HasSubstr("does not know this job's secret"));
}

// Each bit of a proof counts, and rank 0's verdict cannot be forged.
TEST(Handshake, ForgeriesFail) {
  const JobKey key = derive_key(secret);
  const auto text = [](const std::string& words) { return std::as_bytes(std::span(words.data(), words.size())); };
  for (std::size_t bit = 0; bit < 8 * 114; bit += 7) {
    ServerHandshake server(key, make_claims(0, 2, "job", "build"), fresh_nonce());
    ClientHandshake client(key, make_claims(1, 2, "job", "build"), fresh_nonce(), "payload");
    std::string challenge, proof, nothing;
    server.take(text(client.hello()), challenge);
    client.take(text(challenge), proof);
    ASSERT_EQ(proof.size(), 114u);
    proof[bit / 8] = static_cast<char>(proof[bit / 8] ^ (1 << bit % 8));
    server.take(text(proof), nothing);
    EXPECT_NE(server.state(), HandshakeState::proven) << bit;
    EXPECT_EQ(nothing, "") << bit;
  }
  for (std::size_t bit = 0; bit < 8 * 46; bit += 7) {
    ServerHandshake server(key, make_claims(0, 2, "job", "build"), fresh_nonce());
    ClientHandshake client(key, make_claims(1, 2, "job", "build"), fresh_nonce(), "payload");
    std::string challenge, proof, verdict, payload;
    server.take(text(client.hello()), challenge);
    client.take(text(challenge), proof);
    server.take(text(proof), verdict);
    ASSERT_EQ(server.decide(false, verdict), Verdict::welcome);
    ASSERT_EQ(verdict.size(), 46u);
    verdict[bit / 8] = static_cast<char>(verdict[bit / 8] ^ (1 << bit % 8));
    client.take(text(verdict), payload);
    EXPECT_NE(client.state(), HandshakeState::proven) << bit;
    EXPECT_EQ(payload, "") << bit;
  }
  // A client's own proof is no verdict.
  ClientHandshake client(key, make_claims(1, 2, "job", "build"), fresh_nonce(), "payload");
  std::string reply;
  client.take(text(client.hello()), reply);
  EXPECT_EQ(client.state(), HandshakeState::refused);
}

TEST(Handshake, OneByteAtATime) {
  const JobKey key = derive_key(secret);
  ServerHandshake server(key, make_claims(0, 2, "job", "build"), fresh_nonce());
  ClientHandshake client(key, make_claims(1, 2, "job", "build"), fresh_nonce(), "payload");
  std::string to_server = client.hello(), to_client;
  for (int round = 0; round < 100'000 && client.state() != HandshakeState::complete; ++round) {
    if (!to_server.empty()) {
      const std::byte one{static_cast<unsigned char>(to_server[0])};
      to_server.erase(0, 1);
      server.take({&one, 1}, to_client);
      if (server.state() == HandshakeState::proven) {
        ASSERT_EQ(server.decide(false, to_client), Verdict::welcome);
      }
      if (server.state() == HandshakeState::complete && to_client.empty()) to_client = server.everybody("all");
    }
    if (!to_client.empty()) {
      const std::byte one{static_cast<unsigned char>(to_client[0])};
      to_client.erase(0, 1);
      client.take({&one, 1}, to_server);
    }
  }
  EXPECT_EQ(server.payload(), "payload");
  EXPECT_EQ(client.payloads(), "all");
}

TEST(JobSecret, OnlyItsOwnersFileOrADescriptor) {
  const std::string file = ::testing::TempDir() + "secret-" + std::to_string(getpid());
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(file) << text;
    chmod(file.c_str(), mode);
  };
  const auto refusal = [&](const char* path, const char* descriptor) -> std::string {
    try {
      read_job_secret(path, descriptor);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_config);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_FALSE(read_job_secret(nullptr, nullptr));
  write("0123456789abcdef\n", 0600);
  EXPECT_EQ(read_job_secret(file.c_str(), nullptr), "0123456789abcdef");
  const int descriptor = open(file.c_str(), O_RDONLY);
  EXPECT_EQ(read_job_secret(nullptr, std::to_string(descriptor).c_str()), "0123456789abcdef");
  EXPECT_EQ(fcntl(descriptor, F_GETFD), -1);  // closed
  EXPECT_THAT(refusal(nullptr, std::to_string(descriptor).c_str()), HasSubstr("no open descriptor"));
  EXPECT_THAT(refusal(nullptr, "1"), HasSubstr("no open descriptor"));
  EXPECT_THAT(refusal(nullptr, "9x"), HasSubstr("no open descriptor"));
  EXPECT_THAT(refusal(file.c_str(), "9"), HasSubstr("both set"));
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    write("0123456789abcdef\n", mode);
    EXPECT_THAT(refusal(file.c_str(), nullptr), HasSubstr("others than its owner"));
  }
  write("0123456789abcde\n", 0600);
  EXPECT_THAT(refusal(file.c_str(), nullptr), HasSubstr("has 15 bytes"));
  write(std::string(5000, 'x'), 0600);
  EXPECT_THAT(refusal(file.c_str(), nullptr), HasSubstr("more than 4096"));
  EXPECT_THAT(refusal("/dev/zero", nullptr), HasSubstr("no regular file"));
  EXPECT_THAT(refusal("/no/such/file", nullptr), HasSubstr("No such file"));
  unlink(file.c_str());
}

TEST(TcpMeeting, ANameOfTheLoopbackAddressIsNotForSeveralMachines) {
  std::string why;
  const auto addresses = resolve("localhost", 29500, why);
  if (addresses.empty() || !std::all_of(addresses.begin(), addresses.end(), [](const SocketAddress& each) { return each.loopback(); }))
    GTEST_SKIP() << "this system has no localhost";
  const auto refusal = [](const char* address, int local_size) -> std::string {
    setenv("MASTER_ADDR", address, 1);
    setenv("MASTER_PORT", "29500", 1);
    RankEnvironment environment;
    environment.source = RankSource::torchrun;
    environment.size = 2;
    environment.local_size = local_size;
    std::string out = "accepted";
    try {
      EXPECT_EQ(meeting_of(environment, milliseconds(1000)).address, address);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_config);
      out = error.what();
    }
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    return out;
  };
  EXPECT_THAT(refusal("localhost", 1), ::testing::AllOf(HasSubstr("\"localhost\""), HasSubstr("/etc/hosts"), HasSubstr("MASTER_ADDR")));
  EXPECT_EQ(refusal("localhost", 2), "accepted");
  EXPECT_EQ(refusal("localhost", 0), "accepted");  // nobody knows
  EXPECT_EQ(refusal("127.0.0.1", 1), "accepted");
  EXPECT_EQ(refusal("::1", 1), "accepted");
}

TEST_F(TcpRendezvous, OtherAddressesThanLoopbackNeedASecret) {
  TcpMeeting open_to_all = rank(0, 2);
  open_to_all.address = "0.0.0.0";
  open_to_all.secret.reset();
  const Outcome outcome = come(open_to_all);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->code(), ExitCode::bad_config);
  EXPECT_THAT(outcome.failure->what(), HasSubstr("BALEEN_SECRET_FILE"));
  TcpMeeting zero = rank(0, 2), one = rank(1, 2);
  zero.secret.reset();
  one.secret.reset();
  auto host = start(zero);
  EXPECT_FALSE(come(one).failure);
  EXPECT_FALSE(host.get().failure);
}

}  // namespace
}  // namespace baleen
