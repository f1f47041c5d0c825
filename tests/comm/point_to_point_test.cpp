// send and recv: what deadlocks in a plain queue must not here, and order is kept where it matters.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "base/error.h"
#include "comm/idle_communicator.h"
#include "comm/thread_ranks.h"

namespace baleen {
namespace {

using testing::run_members;

// Far more than a channel holds (8 slots of 32 KiB), so that nothing completes by buffering alone.
constexpr std::size_t large = 300'000;

std::vector<float> ramp(std::size_t count, float start) {
  std::vector<float> out(count);
  std::iota(out.begin(), out.end(), start);
  return out;
}

TEST(PointToPoint, BothSendFirst) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{8192}, std::size_t{8193}, large})
    run_members(2, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      const auto mine = ramp(count, static_cast<float>(comm.rank() * 1000)), theirs = ramp(count, static_cast<float>(peer * 1000));
      std::vector<float> got(count);
      const Event sent = comm.send(mine.data(), count, DType::f32, peer);
      const Event received = comm.recv(got.data(), count, DType::f32, peer);
      sent.wait();
      received.wait();
      ASSERT_EQ(got, theirs);
    });
}

TEST(PointToPoint, BothReceiveFirst) {
  run_members(2, [&](Communicator& comm) {
    const int peer = 1 - comm.rank();
    const auto mine = ramp(large, static_cast<float>(comm.rank()));
    std::vector<float> got(large);
    const Event received = comm.recv(got.data(), large, DType::f32, peer);
    const Event sent = comm.send(mine.data(), large, DType::f32, peer);
    received.wait();
    sent.wait();
    ASSERT_EQ(got, ramp(large, static_cast<float>(peer)));
  });
}

// Every rank to every other at once, then a collective in the same queue.
TEST(PointToPoint, AllToAllThenACollective) {
  constexpr int size = 5;
  run_members(size, [&](Communicator& comm) {
    std::vector<std::vector<float>> out(size), in(size);
    std::vector<Event> events;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == comm.rank()) continue;
      const std::size_t count = 20'000;
      out[static_cast<std::size_t>(peer)] = ramp(count, static_cast<float>(comm.rank() * 10 + peer));
      in[static_cast<std::size_t>(peer)].resize(count);
      events.push_back(comm.send(out[static_cast<std::size_t>(peer)].data(), count, DType::f32, peer));
    }
    for (int peer = 0; peer < size; ++peer)
      if (peer != comm.rank())
        events.push_back(comm.recv(in[static_cast<std::size_t>(peer)].data(), in[static_cast<std::size_t>(peer)].size(), DType::f32, peer));
    std::int32_t one = 1;
    comm.all_reduce(&one, &one, 1, DType::i32, ReduceOp::sum).wait();  // queued behind: complete means the others are too
    for (const Event& event : events) ASSERT_TRUE(event.ready());
    for (int peer = 0; peer < size; ++peer)
      ASSERT_TRUE(peer == comm.rank() || in[static_cast<std::size_t>(peer)] == ramp(20'000, static_cast<float>(peer * 10 + comm.rank())));
    ASSERT_EQ(one, size);
  });
}

TEST(PointToPoint, MessagesOfAPairKeepTheirOrder) {
  run_members(2, [&](Communicator& comm) {
    std::vector<std::vector<float>> messages;
    for (int index = 0; index < 30; ++index) messages.push_back(ramp(static_cast<std::size_t>(1 + index * 997), static_cast<float>(index)));
    std::vector<std::vector<float>> got;
    for (const auto& message : messages) got.emplace_back(message.size());
    std::vector<Event> events;
    for (std::size_t index = 0; index < messages.size(); ++index)
      events.push_back(comm.rank() == 0 ? comm.send(messages[index].data(), messages[index].size(), DType::f32, 1)
                                        : comm.recv(got[index].data(), got[index].size(), DType::f32, 0));
    for (const Event& event : events) event.wait();
    ASSERT_TRUE(comm.rank() == 0 || got == messages);
  });
}

// A chain: what rank 1 receives it sends on from the same buffer, without waiting in between. The queue's order is the promise.
TEST(PointToPoint, ASendOfWhatIsStillArrivingWaitsForIt) {
  run_members(3, [&](Communicator& comm) {
    std::vector<float> buffer = comm.rank() == 0 ? ramp(large, 5) : std::vector<float>(large);
    if (comm.rank() == 0) comm.send(buffer.data(), large, DType::f32, 1).wait();
    if (comm.rank() == 1) {
      comm.recv(buffer.data(), large, DType::f32, 0);
      comm.send(buffer.data(), large, DType::f32, 2).wait();
    }
    if (comm.rank() == 2) comm.recv(buffer.data(), large, DType::f32, 1).wait();
    ASSERT_EQ(buffer, ramp(large, 5));
  });
}

// An event that somebody completes by hand.
class Gate final : public EventState {
 public:
  bool ready() const override { return open_.load(); }
  void wait() override { open_.wait(false); }
  void open() {
    open_.store(true);
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

TEST(PointToPoint, StartsAfterItsEventAndLetsOthersPass) {
  run_members(2, [&](Communicator& comm) {
    std::vector<float> held(100, 1.0f), free(large, 2.0f);
    if (comm.rank() == 0) {
      const auto gate = std::make_shared<Gate>();
      const Event late = comm.send(held.data(), held.size(), DType::f32, 1, Event(gate));
      std::vector<float> reply(large);
      comm.recv(reply.data(), reply.size(), DType::f32, 1).wait();  // passes the send that may not start yet
      ASSERT_FALSE(late.ready());
      held.assign(held.size(), 3.0f);  // allowed: not started
      gate->open();
      late.wait();
      ASSERT_EQ(reply, free);
    } else {
      comm.send(free.data(), free.size(), DType::f32, 0);
      comm.recv(held.data(), held.size(), DType::f32, 0).wait();
      ASSERT_EQ(held, std::vector<float>(100, 3.0f));
    }
  });
}

// Three times around the ring, each passing on what has just arrived, with nobody waiting in between.
class Ring : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Ring, ::testing::Values(2, 3, 5), ::testing::PrintToStringParamName());

TEST_P(Ring, AllPassOnAtOnce) {
  const int size = GetParam();
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, large})
    run_members(size, [&](Communicator& comm) {
      const int next = (comm.rank() + 1) % size, previous = (comm.rank() + size - 1) % size;
      std::vector<std::vector<float>> held{ramp(count, static_cast<float>(comm.rank() * 10))};
      Event done;
      for (int step = 1; step <= 3; ++step) {
        held.emplace_back(count);
        done = comm.exchange(held[held.size() - 2].data(), next, held.back().data(), previous, count, DType::f32, done);
      }
      done.wait();
      for (int step = 0; step <= 3; ++step)
        ASSERT_EQ(held[static_cast<std::size_t>(step)], ramp(count, static_cast<float>((comm.rank() + 3 * size - step) % size * 10)));
    });
}

// Messages that end when somebody says so.
class ByHand final : public testing::IdleCommunicator {
 public:
  ByHand() : IdleCommunicator(0, 3, "by hand") {}
  const std::shared_ptr<Gate> sent = std::make_shared<Gate>(), received = std::make_shared<Gate>();
  Event of_send{sent}, of_recv{received};

 protected:
  Event do_send(const void*, std::size_t, DType, int, Event) override { return of_send; }
  Event do_recv(void*, std::size_t, DType, int, Event) override { return of_recv; }
};

TEST(PointToPoint, AnExchangeIsCompleteWhenBothItsHalvesAre) {
  for (const bool send_first : {false, true}) {
    ByHand comm;
    float out = 1, in = 0;
    const Event exchanged = comm.exchange(&out, 1, &in, 2, 1, DType::f32);
    EXPECT_FALSE(exchanged.ready());
    (send_first ? comm.sent : comm.received)->open();
    EXPECT_FALSE(exchanged.ready()) << send_first;
    (send_first ? comm.received : comm.sent)->open();
    EXPECT_TRUE(exchanged.ready());
    exchanged.wait();
  }
}

class Failing final : public EventState {
 public:
  explicit Failing(int& waits) : waits_(waits) {}
  bool ready() const override { return true; }
  void wait() override {
    ++waits_;
    throw Error(ExitCode::rank_failed, "failed");
  }

 private:
  int& waits_;
};

// Its buffers are free afterwards.
TEST(PointToPoint, AnExchangeIsWaitedForWholeAlsoWhereAHalfHasFailed) {
  for (const bool send_fails : {false, true}) {
    ByHand comm;
    int waits = 0;
    const Event failed(std::make_shared<Failing>(waits));
    comm.of_send = send_fails ? failed : Event(comm.sent);
    comm.of_recv = failed;
    float out = 1, in = 0;
    const Event exchanged = comm.exchange(&out, 1, &in, 2, 1, DType::f32);
    comm.sent->open();
    EXPECT_THROW(exchanged.wait(), Error);
    EXPECT_EQ(waits, send_fails ? 2 : 1);
  }
}

TEST(PointToPoint, CollectivesStartAfterTheirEvent) {
  run_members(2, [&](Communicator& comm) {
    const auto gate = std::make_shared<Gate>();
    std::vector<float> data(1000, 1.0f);
    const Event reduced = comm.all_reduce(data.data(), data.data(), data.size(), DType::f32, ReduceOp::sum, Event(gate));
    const Event after_it = comm.barrier();
    data.assign(data.size(), 5.0f);
    ASSERT_FALSE(reduced.ready());
    ASSERT_FALSE(after_it.ready());
    gate->open();
    after_it.wait();
    ASSERT_TRUE(reduced.ready());
    ASSERT_EQ(data, std::vector<float>(1000, 10.0f));
  });
}

TEST(PointToPoint, RefusesItselfAndStrangersAsPeer) {
  run_members(2, [&](Communicator& comm) {
    float value = 0;
    EXPECT_THROW(comm.send(&value, 1, DType::f32, comm.rank()), Error);
    EXPECT_THROW(comm.recv(&value, 1, DType::f32, 2), Error);
    float other = 0;
    EXPECT_THROW(comm.exchange(&value, comm.rank(), &other, 1 - comm.rank(), 1, DType::f32), Error);
    EXPECT_THROW(comm.exchange(&value, 1 - comm.rank(), &other, -1, 1, DType::f32), Error);
    EXPECT_THROW(comm.exchange(&value, 1 - comm.rank(), nullptr, 1 - comm.rank(), 1, DType::f32), Error);
    EXPECT_THROW(comm.broadcast(&value, 1, DType::f32, -1), Error);
    EXPECT_THROW(comm.all_reduce(&value, &value, 1, DType::u8, ReduceOp::sum), Error);
    EXPECT_THROW(comm.all_reduce(nullptr, &value, 1, DType::f32, ReduceOp::sum), Error);
    comm.barrier().wait();  // none of them has reached the queue
  });
}

}  // namespace
}  // namespace baleen
