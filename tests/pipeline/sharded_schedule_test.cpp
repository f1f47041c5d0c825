// gather, release and reduce in tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "pipeline/schedule.h"
#include "pipeline/validate.h"

namespace baleen {
namespace {

using ::testing::HasSubstr;

std::string fault_of(const Schedule& schedule) {
  return find_fault(schedule).value_or("");
}

std::ptrdiff_t count(const Schedule& schedule, int rank, ActionKind kind) {
  const auto& table = schedule.ranks[static_cast<std::size_t>(rank)];
  return std::count_if(table.begin(), table.end(), [&](const Action& action) { return action.kind == kind; });
}

TEST(ShardedSchedule, EveryTableIsWithoutFault) {
  for (const auto& [kind, virtual_stages] :
       {std::pair{ScheduleKind::gpipe, 1}, std::pair{ScheduleKind::one_f_one_b, 1}, std::pair{ScheduleKind::zero_bubble, 1},
        std::pair{ScheduleKind::interleaved, 2}, std::pair{ScheduleKind::interleaved, 3}})
    for (int stages = 1; stages <= 5; ++stages)
      for (int micro_batches = 1; micro_batches <= 11; ++micro_batches)
        for (int whole = 0; whole <= virtual_stages; ++whole) {
          const Schedule schedule = with_sharding(make_schedule(kind, stages, virtual_stages, micro_batches), whole);
          ASSERT_EQ(fault_of(schedule), "") << schedule_name(kind) << " " << stages << " " << virtual_stages << " " << micro_batches << " "
                                            << whole;
          for (int rank = 0; rank < stages; ++rank) {
            ASSERT_EQ(schedule.weights_gathered[static_cast<std::size_t>(rank)], whole);
            ASSERT_EQ(count(schedule, rank, ActionKind::reduce), virtual_stages);
            if (whole == virtual_stages) {
              ASSERT_EQ(count(schedule, rank, ActionKind::gather), virtual_stages);  // once a step
            }
            ASSERT_EQ(count(schedule, rank, ActionKind::gather), count(schedule, rank, ActionKind::release));
          }
        }
}

// A chunk is gathered once for a run of micro-batches, not for each of them.
TEST(ShardedSchedule, GathersOnceForARun) {
  const Schedule schedule = with_sharding(make_schedule(ScheduleKind::interleaved, 4, 2, 8), 1);
  // Rank 0: 4 forwards of chunk 0, 4 of chunk 4, … in warm-up, then pairs that alternate between the chunks now and then.
  EXPECT_LT(count(schedule, 0, ActionKind::gather), 2 * 2 * 8);
  EXPECT_EQ(count(with_sharding(make_schedule(ScheduleKind::one_f_one_b, 4, 1, 8), 1), 0, ActionKind::gather), 1);
}

// With room for two of three chunks the next run's weights are gathered before this run's last computation.
TEST(ShardedSchedule, GathersAhead) {
  const Schedule schedule = with_sharding(make_schedule(ScheduleKind::interleaved, 2, 3, 4), 2);
  const auto& table = schedule.ranks[0];
  ASSERT_EQ(table[0], (Action{ActionKind::gather, 0}));
  ASSERT_EQ(table[1], (Action{ActionKind::gather, 2}));
  ASSERT_EQ(table[2], (Action{ActionKind::forward, 0, 0}));
}

TEST(ShardedSchedule, SendsComeBeforeTheReduction) {
  const Schedule schedule = with_sharding(make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3), 1);
  const auto& table = schedule.ranks[1];
  ASSERT_EQ(table[table.size() - 3], (Action{ActionKind::send_gradient, 1, 2}));
  ASSERT_EQ(table[table.size() - 2], (Action{ActionKind::reduce, 1}));
  ASSERT_EQ(table[table.size() - 1], (Action{ActionKind::release, 1}));
}

TEST(ShardedSchedule, BrokenTables) {
  const Schedule whole = with_sharding(make_schedule(ScheduleKind::interleaved, 2, 2, 2), 1);
  const auto without = [&](ActionKind kind, int nth) {
    Schedule broken = whole;
    auto& table = broken.ranks[0];
    for (auto at = table.begin(); at != table.end(); ++at)
      if (at->kind == kind && nth-- == 0) {
        table.erase(at);
        break;
      }
    return fault_of(broken);
  };
  EXPECT_THAT(without(ActionKind::gather, 0), HasSubstr("forward of chunk 0, micro-batch 0: its weights are not whole"));
  EXPECT_THAT(without(ActionKind::release, 0), HasSubstr("more chunks are whole than were promised"));
  EXPECT_EQ(without(ActionKind::release, static_cast<int>(count(whole, 0, ActionKind::release)) - 1),
            "rank 0 does not release all it gathers");
  EXPECT_EQ(without(ActionKind::reduce, 1), "rank 0 does not reduce all its chunks");

  Schedule broken = whole;
  broken.ranks[0].insert(broken.ranks[0].begin() + 1, {ActionKind::reduce, 0});
  EXPECT_EQ(fault_of(broken), "rank 0, reduce of chunk 0: not once after the last backward");
  broken.ranks[0][1] = {ActionKind::gather, 0};
  EXPECT_EQ(fault_of(broken), "rank 0, gather of chunk 0: it is whole already");
  broken.ranks[0][1] = {ActionKind::release, 2};
  EXPECT_EQ(fault_of(broken), "rank 0, release of chunk 2: it is not whole");
}

TEST(ShardedSchedule, ForwardAlone) {
  const Schedule schedule = with_sharding(make_forward_schedule(3, 2, 5), 1);
  EXPECT_EQ(fault_of(schedule), "");
  EXPECT_EQ(count(schedule, 1, ActionKind::reduce), 0);
}

}  // namespace
}  // namespace baleen
