// Ranks that no launcher of ours has started find each other. Threads stand for processes: each has its own connection and mapping.
#include "launch/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "launch/rank_programs.h"

namespace baleen {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

RankEnvironment rank_of(int rank, int size, const std::string& job) {
  RankEnvironment out;
  out.source = RankSource::torchrun;
  out.rank = out.local_rank = rank;
  out.size = out.local_size = size;
  out.job = job + " of process " + std::to_string(getpid());  // test programs may run side by side
  return out;
}

std::optional<Error> failure_of(const RankEnvironment& environment, milliseconds timeout) {
  try {
    share_region(environment, timeout);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

// Where rank 0 of this job listens.
struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;
};
Name name_of(const RankEnvironment& environment) {
  const std::uint64_t job = hash_bytes(environment.job.data(), environment.job.size(), static_cast<std::uint64_t>(environment.source));
  char text[100];
  const int length =
      std::snprintf(text, sizeof text, "baleen-%u-%016llx", static_cast<unsigned>(geteuid()), static_cast<unsigned long long>(job));
  Name out;
  out.address.sun_family = AF_UNIX;
  std::memcpy(out.address.sun_path + 1, text, static_cast<std::size_t>(length));
  out.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
  return out;
}
bool call(const Descriptor& visitor, const Name& name) {
  return connect(visitor.get(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) == 0;
}

TEST(Rendezvous, AllRanksMapTheSameMemory) {
  const std::size_t descriptors = testing::open_descriptors();
  std::vector<std::shared_ptr<SharedRegion>> regions(4);
  {
    std::vector<std::jthread> threads;
    for (int rank = 3; rank >= 0; --rank)
      threads.emplace_back(
          [&, rank] { regions[static_cast<std::size_t>(rank)] = share_region(rank_of(rank, 4, "same"), std::chrono::seconds(20)); });
  }
  for (std::size_t rank = 0; rank < regions.size(); ++rank) regions[rank]->payload()[rank] = static_cast<std::byte>(rank + 1);
  for (const auto& region : regions)
    for (std::size_t rank = 0; rank < regions.size(); ++rank) EXPECT_EQ(region->payload()[rank], static_cast<std::byte>(rank + 1));
  EXPECT_EQ(testing::open_descriptors(), descriptors);
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  std::jthread second([] { EXPECT_FALSE(failure_of(rank_of(2, 4, "missing"), std::chrono::seconds(20))); });
  const auto failure = failure_of(rank_of(0, 4, "missing"), milliseconds(2000));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ExitCode::rank_failed);
  EXPECT_THAT(failure->what(), HasSubstr("did not come: 1, 3"));
}

TEST(Rendezvous, AMissingRankZeroIsNamed) {
  const auto failure = failure_of(rank_of(1, 2, "headless"), milliseconds(100));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ExitCode::rank_failed);
  EXPECT_THAT(failure->what(), HasSubstr("for rank 0, which did not come"));
}

TEST(Rendezvous, DisagreementIsRefused) {
  std::jthread zero([] { EXPECT_FALSE(failure_of(rank_of(0, 2, "disagree"), std::chrono::seconds(20))); });
  const auto other_size = failure_of(rank_of(1, 3, "disagree"), std::chrono::seconds(20));
  ASSERT_TRUE(other_size);
  EXPECT_EQ(other_size->code(), ExitCode::bad_config);
  const auto taken = failure_of(rank_of(0, 2, "disagree"), std::chrono::seconds(20));  // a second rank 0
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->code(), ExitCode::bad_config);
  EXPECT_FALSE(failure_of(rank_of(1, 2, "disagree"), std::chrono::seconds(20)));
}

TEST(Rendezvous, ARankThatComesTwiceIsRefused) {
  std::jthread zero([] { EXPECT_FALSE(failure_of(rank_of(0, 3, "twice"), std::chrono::seconds(20))); });
  EXPECT_FALSE(failure_of(rank_of(1, 3, "twice"), std::chrono::seconds(20)));
  const auto again = failure_of(rank_of(1, 3, "twice"), std::chrono::seconds(20));
  ASSERT_TRUE(again);
  EXPECT_THAT(again->what(), HasSubstr("another process has come as rank 1"));
  EXPECT_FALSE(failure_of(rank_of(2, 3, "twice"), std::chrono::seconds(20)));
}

// Somebody who knows the name and sends rubbish, or nothing, gets nothing and keeps nobody out.
TEST(Rendezvous, VisitorsWithoutAGreetingAreShownOut) {
  const RankEnvironment zero_environment = rank_of(0, 2, "visitors");
  std::jthread zero([&] { EXPECT_FALSE(failure_of(zero_environment, std::chrono::seconds(20))); });
  const Name name = name_of(zero_environment);
  const std::string as_long_as_a_greeting = "hello there, let me in!!";  // 24 bytes
  for (const std::string& words : {std::string("hello"), as_long_as_a_greeting, std::string()}) {
    const Descriptor visitor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    while (!call(visitor, name)) std::this_thread::sleep_for(milliseconds(1));
    if (words.empty())
      shutdown(visitor.get(), SHUT_WR);
    else
      ASSERT_EQ(send(visitor.get(), words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
    char answer = 0;
    EXPECT_LE(recv(visitor.get(), &answer, 1, 0), 0);
  }
  EXPECT_FALSE(failure_of(rank_of(1, 2, "visitors"), std::chrono::seconds(20)));
}

// A rank that cannot be let in is no reason to try for ever, or until the deadline.
TEST(Rendezvous, RunningOutOfDescriptorsIsNamed) {
  const RankEnvironment environment = rank_of(0, 2, "descriptors");
  const Name name = name_of(environment);
  const Descriptor visitor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // Rank 0 needs two, one to listen and the region's; the third is the visitor's.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  {
    const Descriptor first(dup(visitor.get())), second(dup(visitor.get())), third(dup(visitor.get()));
    tight.rlim_cur = static_cast<rlim_t>(third.get());
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::optional<Error> failure;
  {
    std::jthread come([&](const std::stop_token& stop) {
      while (!stop.stop_requested() && !call(visitor, name)) std::this_thread::sleep_for(milliseconds(1));
    });
    failure = failure_of(environment, std::chrono::seconds(5));
  }
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code(), ExitCode::rank_failed);
  EXPECT_THAT(failure->what(), HasSubstr("cannot take a rank's connection: Too many open files"));
}

}  // namespace
}  // namespace baleen
