// The simulator against closed forms, and against hand-made tables.
#include "pipeline/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace baleen {
namespace {

double bubble(ScheduleKind kind, int stages, int virtual_stages, int micro_batches, const ChunkCosts& costs = {}) {
  const Simulation played = simulate(make_schedule(kind, stages, virtual_stages, micro_batches), {costs});
  EXPECT_TRUE(played.complete);
  return played.bubble_fraction;
}

// Idle share of the span: (p-1) slots of forward + backward beside m of them (GPipe and 1F1B).
TEST(Simulate, GPipeAnd1f1b) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {1, 2, 3, p, 2 * p, 64})
      for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b})
        ASSERT_NEAR(bubble(kind, p, 1, m, {1, 0.7, 1.3}), (p - 1.0) / (m + p - 1.0), 1e-9)
            << schedule_name(kind) << " p " << p << " m " << m;
}

// Each chunk takes a v-th of the time: (p-1) slots of 1/v beside m.
TEST(Simulate, Interleaved) {
  for (int p = 1; p <= 16; ++p)
    for (int v = 1; v <= 4; ++v)
      for (const int m : {p, 2 * p, 4 * p})
        ASSERT_NEAR(bubble(ScheduleKind::interleaved, p, v, m, {1, 1, 1}), (p - 1.0) / (v * m + p - 1.0), 1e-9)
            << "p " << p << " v " << v << " m " << m;
}

// A short last group costs no more than a whole one: the span is at most that of the next multiple of p.
TEST(Simulate, InterleavedWithAShortGroup) {
  for (int p = 2; p <= 8; ++p)
    for (int v = 1; v <= 3; ++v)
      for (int m = 1; m <= 4 * p; ++m) {
        const Simulation played = simulate(make_schedule(ScheduleKind::interleaved, p, v, m), {{1, 1, 1}});
        const int whole = (m + p - 1) / p * p;
        ASSERT_LE(played.makespan, 3 * (v * whole + p - 1) + 1e-9) << "p " << p << " v " << v << " m " << m;
      }
}

// ZB-H1 with F = B = W: (p-1)·(F + B - W) idle on each rank beside m·(F + B + W).
TEST(Simulate, ZeroBubble) {
  for (int p = 2; p <= 16; ++p)
    for (const int m : {p, p + 1, 2 * p, 64}) {
      if (m < p) continue;
      const double zero_bubble = bubble(ScheduleKind::zero_bubble, p, 1, m);
      ASSERT_NEAR(zero_bubble, (p - 1.0) / (3 * m + p - 1.0), 1e-9) << "p " << p << " m " << m;
      ASSERT_LE(zero_bubble, 0.6 * bubble(ScheduleKind::one_f_one_b, p, 1, m));
    }
}

// Two buffers a direction for messages on their way are as good as any number: the simulated times above are the closed forms. With a
// latency 1F1B pays it on the way down and on the way back up, once if m = 1.
TEST(Simulate, LatencyOfOneMicroBatch) {
  for (const bool prefetch : {true, false}) {
    const Simulation played = simulate(make_schedule(ScheduleKind::one_f_one_b, 4, 1, 1), {{1, 1, 1}}, {0.25, prefetch});
    EXPECT_DOUBLE_EQ(played.makespan, 4 * 3 + 2 * 3 * 0.25);
  }
}

// GPipe's activations flow one way: the latency is hidden behind the next micro-batch.
TEST(Simulate, LatencyIsHiddenByTheNextMicroBatch) {
  const double none = simulate(make_schedule(ScheduleKind::gpipe, 2, 1, 8), {{1, 1, 1}}).makespan;
  const double some = simulate(make_schedule(ScheduleKind::gpipe, 2, 1, 8), {{1, 1, 1}}, {0.5, true}).makespan;
  EXPECT_DOUBLE_EQ(some, none + 2 * 0.5);
}

TEST(Simulate, SlowStage) {
  // The second of two stages takes twice as long: everything waits for it.
  const Simulation played = simulate(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 6), {{1, 1, 1}, {2, 2, 2}});
  EXPECT_DOUBLE_EQ(played.makespan, 1 + 6 * 6 + 2);
  EXPECT_DOUBLE_EQ(played.busy[0], 18);
  EXPECT_DOUBLE_EQ(played.busy[1], 36);
  EXPECT_DOUBLE_EQ(played.bubble_fraction, 1 - 54.0 / (2 * 39.0));
}

// By hand: two stages, two micro-batches, F = 1, B = 2.
TEST(Simulate, SpansOfASmallTable) {
  const Schedule schedule = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 2);
  const Simulation played = simulate(schedule, {{1, 1, 1}});
  const auto begin = [&](int rank, const Action& action) {
    const auto& table = schedule.ranks[static_cast<std::size_t>(rank)];
    const auto at = std::find(table.begin(), table.end(), action) - table.begin();
    return played.spans[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at)].begin;
  };
  EXPECT_EQ(begin(0, {ActionKind::forward, 0, 1}), 1);
  EXPECT_EQ(begin(1, {ActionKind::forward, 1, 0}), 1);
  EXPECT_EQ(begin(1, {ActionKind::backward, 1, 0}), 2);
  EXPECT_EQ(begin(0, {ActionKind::backward, 0, 0}), 4);
  EXPECT_EQ(begin(1, {ActionKind::forward, 1, 1}), 4);
  EXPECT_EQ(begin(1, {ActionKind::backward, 1, 1}), 5);
  EXPECT_EQ(begin(0, {ActionKind::backward, 0, 1}), 7);
  EXPECT_EQ(played.makespan, 9);
}

TEST(Simulate, StopsWhereRanksWaitForEachOther) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 1);
  std::swap(broken.ranks[0][1], broken.ranks[0][2]);  // the gradient is awaited before the activation is sent
  for (const bool prefetch : {true, false}) {
    const Simulation played = simulate(broken, {{1, 1, 1}}, {0, prefetch});
    EXPECT_FALSE(played.complete);
    EXPECT_EQ(played.next, (std::vector<std::size_t>{1, 0}));
  }
}

TEST(Simulate, CostsOfAllChunksOrOfEach) {
  EXPECT_THROW(simulate(make_schedule(ScheduleKind::gpipe, 3, 1, 2), {{1, 1, 1}, {1, 1, 1}}), Error);
}

}  // namespace
}  // namespace baleen
