// Short operations run on the caller's own thread when everybody comes at once. Whoever comes late is waited for by the communicator's
// thread: no call holds its caller up, and the order of the queue stays.
#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using testing::all_ranks;
using testing::run_members;
using testing::run_ranks;

// Counts operations that end on the thread that made this.
class OwnThread final : public CommObserver {
 public:
  void on_operation(const std::string&, std::string_view, std::size_t, Time, Time) override {
    const std::lock_guard lock(mutex_);
    (std::this_thread::get_id() == own_ ? here_ : elsewhere_)++;
  }
  int here() const { return count(here_); }
  int elsewhere() const { return count(elsewhere_); }

 private:
  int count(const int& which) const {
    const std::lock_guard lock(mutex_);
    return which;
  }
  const std::thread::id own_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  int here_ = 0, elsewhere_ = 0;
};

TEST(ShortOperations, RunOnTheCallersThread) {
  if (testing::over_tcp() || testing::over_mpi()) GTEST_SKIP() << "of shared memory only";
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "two ranks need two cores";
  run_members(2, [](Communicator& comm) {
    OwnThread observer;
    comm.observe(&observer);
    float short_sum = 1;
    std::vector<float> long_sum(100'000, 1.0f);
    int rounds = 0;
    // All ranks end in the same round: the sum tells how many have seen one.
    for (std::int32_t seen = 0; seen < 2 && rounds < 20'000; ++rounds) {
      comm.all_reduce(&short_sum, &short_sum, 1, DType::f32, ReduceOp::max).wait();
      seen = observer.here() > 0 ? 1 : 0;
      comm.all_reduce(&seen, &seen, 1, DType::i32, ReduceOp::sum).wait();
    }
    EXPECT_GT(observer.here(), 0) << "in " << rounds << " rounds";
    const int short_ones = observer.here() + observer.elsewhere(), here = observer.here();
    EXPECT_EQ(short_ones, 2 * rounds);
    comm.all_reduce(long_sum.data(), long_sum.data(), long_sum.size(), DType::f32, ReduceOp::sum).wait();
    EXPECT_EQ(observer.here(), here) << "a long one belongs to the communicator's thread";
    EXPECT_EQ(long_sum.back(), 2);
    comm.barrier().wait();
  });
}

TEST(ShortOperations, AreHandedOverWhenSomebodyIsLate) {
  std::latch returned(1);
  run_members(2, [&](Communicator& comm) {
    std::vector<std::int32_t> data(600, comm.rank() + 1);
    if (comm.rank() == 1) returned.wait();
    const Event sum = comm.all_reduce(data.data(), data.data(), data.size(), DType::i32, ReduceOp::sum);
    if (comm.rank() == 0) {
      EXPECT_FALSE(sum.ready());
      returned.count_down();
    }
    sum.wait();
    for (const std::int32_t value : data) ASSERT_EQ(value, 3);
  });
}

TEST(ShortOperations, OfTwoCommunicatorsInOppositeOrders) {
  run_ranks(2, [](World& world) {
    const auto a = world.create_communicator(all_ranks(2), "dp"), b = world.create_communicator(all_ranks(2), "tp");
    for (int round = 0; round < 50; ++round) {
      std::int32_t first = 1, second = 1;
      Communicator &early = world.rank() == 0 ? *a : *b, &late = world.rank() == 0 ? *b : *a;
      const Event one = early.all_reduce(&first, &first, 1, DType::i32, ReduceOp::sum);
      const Event two = late.all_reduce(&second, &second, 1, DType::i32, ReduceOp::sum);
      one.wait();
      two.wait();
      ASSERT_EQ(first, 2);
      ASSERT_EQ(second, 2);
    }
  });
}

// Whatever thread runs them: short behind long, behind a message, and in front of both, without a wait in between.
TEST(ShortOperations, KeepTheirPlaceInTheQueue) {
  run_members(2, [](Communicator& comm) {
    const int peer = 1 - comm.rank();
    std::vector<std::int32_t> large(50'000), sent(10), received(10);
    for (int round = 0; round < 100; ++round) {
      std::vector<std::int32_t> small(100, round);
      large.assign(large.size(), round);
      sent.assign(sent.size(), round);
      std::vector<Event> events;
      const auto sum = [&](std::vector<std::int32_t>& of) {
        events.push_back(comm.all_reduce(of.data(), of.data(), of.size(), DType::i32, ReduceOp::sum));
      };
      sum(small);
      sum(large);
      sum(small);
      events.push_back(comm.send(sent.data(), sent.size(), DType::i32, peer));
      events.push_back(comm.recv(received.data(), received.size(), DType::i32, peer));
      sum(received);
      sum(small);
      events.back().wait();
      for (const Event& event : events) ASSERT_TRUE(event.ready());  // in order
      ASSERT_EQ(small, std::vector<std::int32_t>(small.size(), 8 * round));
      ASSERT_EQ(large, std::vector<std::int32_t>(large.size(), 2 * round));
      ASSERT_EQ(received, std::vector<std::int32_t>(received.size(), 2 * round));
    }
  });
}

// Two threads of a rank on one communicator: their operations are the same, so any order fits.
TEST(ShortOperations, OfTwoThreadsOfARank) {
  run_members(2, [](Communicator& comm) {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 2; ++thread)
      threads.emplace_back([&comm] {
        for (int round = 0; round < 500; ++round) {
          std::int32_t one = 1;
          comm.all_reduce(&one, &one, 1, DType::i32, ReduceOp::sum).wait();
          ASSERT_EQ(one, 2);
        }
      });
  });
}

}  // namespace
}  // namespace baleen
