// Every table of every schedule is whole, cannot hang and keeps its promises; broken tables are found out.
#include "pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "pipeline/boundary_plan.h"
#include "pipeline/validate.h"

namespace baleen {
namespace {

using ::testing::HasSubstr;

std::string fault_of(const Schedule& schedule) {
  return find_fault(schedule).value_or("");
}

std::vector<Action>& table(Schedule& schedule, int rank) {
  return schedule.ranks[static_cast<std::size_t>(rank)];
}

std::size_t place(const std::vector<Action>& table, const Action& action) {
  const auto found = std::find(table.begin(), table.end(), action);
  EXPECT_NE(found, table.end()) << describe(action);
  return static_cast<std::size_t>(found - table.begin());
}

void swap_actions(std::vector<Action>& table, const Action& a, const Action& b) {
  std::swap(table[place(table, a)], table[place(table, b)]);
}

TEST(Schedule, EveryTableIsWithoutFault) {
  for (int stages = 1; stages <= 16; ++stages)
    for (int micro_batches = 1; micro_batches <= 64; ++micro_batches)
      for (const auto& [kind, most_virtual] : {std::pair{ScheduleKind::gpipe, 1}, std::pair{ScheduleKind::one_f_one_b, 1},
                                               std::pair{ScheduleKind::zero_bubble, 1}, std::pair{ScheduleKind::interleaved, 4}})
        for (int virtual_stages = 1; virtual_stages <= most_virtual; ++virtual_stages)
          ASSERT_EQ(fault_of(make_schedule(kind, stages, virtual_stages, micro_batches)), "")
              << schedule_name(kind) << " with " << stages << " x " << virtual_stages << " stages, " << micro_batches << " micro-batches";
}

// With NCCL the first message of a link holds the hosts of both its ranks until each has come to its own call; later ones hold nobody.
// Whether every rank gets to the end of its table.
bool first_messages_meet(const Schedule& schedule) {
  const auto stages = schedule.ranks.size();
  std::vector<std::size_t> next(stages, 0);
  std::array<std::vector<bool>, 2> connected{std::vector<bool>(stages),
                                             std::vector<bool>(stages)};  // of activations and gradients, by sender
  const auto ended = [&](std::size_t rank) { return next[rank] == schedule.ranks[rank].size(); };
  const auto at = [&](std::size_t rank) { return schedule.ranks[rank][next[rank]]; };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < stages; ++rank) {
      if (ended(rank)) continue;
      const Action action = at(rank);
      const bool sends = action.kind == ActionKind::send_activation || action.kind == ActionKind::send_gradient;
      const bool activation = action.kind == ActionKind::send_activation || action.kind == ActionKind::recv_activation;
      const int up = activation == sends ? 1 : -1;  // from this rank's chunk to the other's
      const auto other = static_cast<std::size_t>(schedule.rank_of(action.chunk + up + static_cast<int>(stages)));
      if (action.compute() || action.micro_batch < 0 || connected[activation ? 0 : 1][sends ? rank : other]) {
        ++next[rank];
        moved = true;
      } else if (sends && !ended(other) && at(other).kind == (activation ? ActionKind::recv_activation : ActionKind::recv_gradient) &&
                 at(other).chunk == action.chunk + up) {
        connected[activation ? 0 : 1][rank] = moved = true;
        ++next[rank];
        ++next[other];
      }
    }
  }
  for (std::size_t rank = 0; rank < stages; ++rank)
    if (!ended(rank)) return false;
  return true;
}

TEST(Schedule, FirstMessagesMeetOnTheHosts) {
  for (int stages = 2; stages <= 8; ++stages)
    for (int micro_batches = 1; micro_batches <= 24; ++micro_batches)
      for (int v = 1; v <= 4; ++v) {
        const auto where = ::testing::Message() << stages << " x " << v << " stages, " << micro_batches << " micro-batches";
        if (v == 1) {
          for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
            ASSERT_TRUE(first_messages_meet(make_schedule(kind, stages, v, micro_batches))) << schedule_name(kind) << " " << where;
        }
        ASSERT_TRUE(first_messages_meet(make_schedule(ScheduleKind::interleaved, stages, v, micro_batches))) << where;
        ASSERT_TRUE(first_messages_meet(make_forward_schedule(stages, v, micro_batches))) << where;
      }
  // Two stages that both send first would wait for each other.
  Schedule crossed = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 1);
  std::vector<Action>& last = table(crossed, 1);
  const auto sent = std::find_if(last.begin(), last.end(), [](const Action& action) { return action.kind == ActionKind::send_gradient; });
  std::rotate(last.begin(), sent, sent + 1);
  EXPECT_FALSE(first_messages_meet(crossed));
}

TEST(Schedule, EveryForwardTableIsWithoutFault) {
  for (int stages = 1; stages <= 16; stages += 3)
    for (int micro_batches = 1; micro_batches <= 20; ++micro_batches)
      for (int virtual_stages = 1; virtual_stages <= 3; ++virtual_stages) {
        ASSERT_EQ(fault_of(make_forward_schedule(stages, virtual_stages, micro_batches)), "") << stages << " " << micro_batches;
        ASSERT_EQ(plan_boundary(make_forward_schedule(stages, virtual_stages, micro_batches), 0).saved_slots, 1);
      }
}

// The promises themselves: what the papers say each rank keeps.
TEST(Schedule, PromisesAreThoseOfThePapers) {
  using Promise = std::vector<int>;
  EXPECT_EQ(make_schedule(ScheduleKind::gpipe, 4, 1, 8).activations_in_flight, (Promise{8, 8, 8, 8}));
  EXPECT_EQ(make_schedule(ScheduleKind::one_f_one_b, 4, 1, 8).activations_in_flight, (Promise{4, 3, 2, 1}));
  EXPECT_EQ(make_schedule(ScheduleKind::zero_bubble, 4, 1, 8).activations_in_flight, (Promise{4, 4, 4, 4}));
  EXPECT_EQ(make_schedule(ScheduleKind::interleaved, 4, 2, 8).activations_in_flight, (Promise{11, 9, 7, 5}));
  EXPECT_EQ(make_schedule(ScheduleKind::one_f_one_b, 4, 1, 2).activations_in_flight, (Promise{2, 2, 2, 1}));
}

TEST(Schedule, PromisesAreReached) {
  for (const auto& [kind, virtual_stages] : {std::pair{ScheduleKind::gpipe, 1}, std::pair{ScheduleKind::one_f_one_b, 1},
                                             std::pair{ScheduleKind::zero_bubble, 1}, std::pair{ScheduleKind::interleaved, 3}})
    for (int rank = 0; rank < 4; ++rank) {
      Schedule schedule = make_schedule(kind, 4, virtual_stages, 12);
      ASSERT_EQ(plan_boundary(schedule, rank).saved_slots, schedule.activations_in_flight[static_cast<std::size_t>(rank)]);
      --schedule.activations_in_flight[static_cast<std::size_t>(rank)];
      ASSERT_THAT(fault_of(schedule), HasSubstr("were promised")) << schedule_name(kind);
    }
}

TEST(Schedule, SlotsOf1f1bDoNotDependOnTheNumberOfMicroBatches) {
  for (int rank = 0; rank < 4; ++rank) {
    const BoundaryPlan few = plan_boundary(make_schedule(ScheduleKind::one_f_one_b, 4, 1, 8), rank);
    for (const int micro_batches : {16, 64, 200}) {
      const BoundaryPlan many = plan_boundary(make_schedule(ScheduleKind::one_f_one_b, 4, 1, micro_batches), rank);
      EXPECT_EQ(many.slots(), few.slots());
      EXPECT_EQ(many.saved_slots, few.saved_slots);
      EXPECT_EQ(many.activation_slots, rank == 0 ? 0 : 4 - rank + 1);
    }
  }
  EXPECT_GT(plan_boundary(make_schedule(ScheduleKind::gpipe, 4, 1, 64), 1).slots(),
            plan_boundary(make_schedule(ScheduleKind::gpipe, 4, 1, 8), 1).slots());
}

// No two messages that are in use at the same time lie in one slot.
TEST(Schedule, SlotsAreNotShared) {
  for (const auto& [kind, stages, virtual_stages] :
       {std::tuple{ScheduleKind::gpipe, 3, 1}, std::tuple{ScheduleKind::one_f_one_b, 4, 1}, std::tuple{ScheduleKind::zero_bubble, 4, 1},
        std::tuple{ScheduleKind::interleaved, 4, 3}, std::tuple{ScheduleKind::interleaved, 1, 3}})
    for (int rank = 0; rank < stages; ++rank) {
      const Schedule schedule = make_schedule(kind, stages, virtual_stages, 9);
      const BoundaryPlan plan = plan_boundary(schedule, rank);
      std::vector<int> in_use(static_cast<std::size_t>(plan.activation_slots));
      const auto use = [&](int chunk, int i, int change) {
        const int slot = plan.activation[plan.entry(chunk, i)];
        ASSERT_GE(slot, 0);
        const int users = in_use[static_cast<std::size_t>(slot)] += change;
        ASSERT_TRUE(users == 0 || users == 1);
      };
      for (const Action& action : schedule.ranks[static_cast<std::size_t>(rank)]) {
        if (action.kind == ActionKind::recv_activation) use(action.chunk, action.micro_batch, 1);
        if (action.kind == ActionKind::forward && stages == 1 && !schedule.last(action.chunk)) use(action.chunk + 1, action.micro_batch, 1);
        if (action.last_backward() && !schedule.first(action.chunk)) use(action.chunk, action.micro_batch, -1);
      }
    }
}

TEST(BrokenSchedule, AnyActionMissing) {
  for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
    const Schedule whole = make_schedule(kind, 3, 1, 4);
    for (int rank = 0; rank < 3; ++rank)
      for (std::size_t at = 0; at < whole.ranks[static_cast<std::size_t>(rank)].size(); ++at) {
        Schedule broken = whole;
        table(broken, rank).erase(table(broken, rank).begin() + static_cast<std::ptrdiff_t>(at));
        ASSERT_THAT(fault_of(broken), HasSubstr("missing")) << describe(whole.ranks[static_cast<std::size_t>(rank)][at]);
      }
  }
}

TEST(BrokenSchedule, ActionTwice) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3);
  table(broken, 1).push_back({ActionKind::backward, 1, 2});
  EXPECT_EQ(fault_of(broken), "rank 1 has twice: backward of chunk 1, micro-batch 2");
}

TEST(BrokenSchedule, ChunkOrMicroBatchOfNobody) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3);
  table(broken, 1).push_back({ActionKind::forward, 0, 2});
  EXPECT_EQ(fault_of(broken), "rank 1 has no chunk for: forward of chunk 0, micro-batch 2");
  table(broken, 1).back() = {ActionKind::forward, 1, 3};
  EXPECT_EQ(fault_of(broken), "rank 1 has no micro-batch for: forward of chunk 1, micro-batch 3");
  table(broken, 1).back() = {ActionKind::send_activation, 1, 0};
  EXPECT_EQ(fault_of(broken), "nobody is there for: send_activation of chunk 1, micro-batch 0");
}

TEST(BrokenSchedule, BackwardBesideOneOfItsHalves) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 1, 1, 1);
  table(broken, 0).push_back({ActionKind::backward_weight, 0, 0});
  EXPECT_THAT(fault_of(broken), HasSubstr("beside a half of it"));
}

TEST(BrokenSchedule, ReceivesInAnotherOrder) {
  Schedule broken = make_schedule(ScheduleKind::gpipe, 2, 1, 4);
  // Both receives stay before what reads them.
  auto& second = table(broken, 1);
  const Action late{ActionKind::recv_activation, 1, 2};
  second.erase(second.begin() + static_cast<std::ptrdiff_t>(place(second, late)));
  second.insert(second.begin() + static_cast<std::ptrdiff_t>(place(second, {ActionKind::recv_activation, 1, 1})), late);
  EXPECT_EQ(fault_of(broken), "rank 1 expects recv_activation of chunk 1, micro-batch 1 later than it is sent");
}

TEST(BrokenSchedule, BackwardBeforeItsForward) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3);
  swap_actions(table(broken, 1), {ActionKind::forward, 1, 1}, {ActionKind::backward, 1, 1});
  EXPECT_EQ(fault_of(broken), "backward of chunk 1, micro-batch 1 comes before forward");
  Schedule halves = make_schedule(ScheduleKind::zero_bubble, 2, 1, 3);
  swap_actions(table(halves, 1), {ActionKind::backward_input, 1, 1}, {ActionKind::backward_weight, 1, 1});
  EXPECT_EQ(fault_of(halves), "backward_weight of chunk 1, micro-batch 1 comes before backward_input");
}

TEST(BrokenSchedule, MessageOnTheWrongSideOfItsComputation) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 3);
  swap_actions(table(broken, 0), {ActionKind::forward, 0, 1}, {ActionKind::send_activation, 0, 1});
  EXPECT_EQ(fault_of(broken), "send_activation of chunk 0, micro-batch 1 comes before forward");
}

// Rank 0 runs 1F1B with one forward ahead as if it were the last but one of three, rank 1 holds all forwards back for gradients.
TEST(BrokenSchedule, RanksThatWaitForEachOther) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 4);
  auto& first = table(broken, 0);
  // The gradient of micro-batch 0 is awaited before its activation is sent.
  const Action send{ActionKind::send_activation, 0, 0};
  first.erase(first.begin() + static_cast<std::ptrdiff_t>(place(first, send)));
  first.insert(first.begin() + 1 + static_cast<std::ptrdiff_t>(place(first, {ActionKind::recv_gradient, 0, 0})), send);
  const std::string fault = fault_of(broken);
  EXPECT_THAT(fault, HasSubstr("later than it is sent"));  // micro-batch 1 was sent before it

  Schedule one = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 1);
  auto& only = table(one, 0);
  swap_actions(only, {ActionKind::send_activation, 0, 0}, {ActionKind::recv_gradient, 0, 0});
  EXPECT_EQ(
      fault_of(one),
      "ranks wait for each other: rank 0 at recv_gradient of chunk 0, micro-batch 0; rank 1 at recv_activation of chunk 1, micro-batch 0");
}

// Three outputs written before the first is sent: there are buffers for two.
TEST(BrokenSchedule, SendsTooLateForTheirBuffers) {
  Schedule broken = make_schedule(ScheduleKind::gpipe, 2, 1, 3);
  auto& first = table(broken, 0);
  std::stable_partition(first.begin(), first.begin() + 6, [](const Action& action) { return action.kind == ActionKind::forward; });
  EXPECT_THAT(fault_of(broken), HasSubstr("rank 0 at forward of chunk 0, micro-batch 2"));
}

// Both wait with their next pass for a message that the other sends only after its own: with one queue for both directions, or sends that
// block, 1F1B itself would hang like this.
TEST(BrokenSchedule, CrossedSends) {
  Schedule broken = make_schedule(ScheduleKind::one_f_one_b, 2, 1, 2);
  auto& second = table(broken, 1);
  // Rank 1 wants micro-batch 1 before it gives back the gradient of 0, which rank 0 needs before it goes on to 1.
  const Action gradient{ActionKind::send_gradient, 1, 0};
  second.erase(second.begin() + static_cast<std::ptrdiff_t>(place(second, gradient)));
  second.insert(second.begin() + 1 + static_cast<std::ptrdiff_t>(place(second, {ActionKind::recv_activation, 1, 1})), gradient);
  ASSERT_EQ(fault_of(broken), "");  // rank 0 is one ahead: fine
  auto& first = table(broken, 0);
  const Action forward{ActionKind::forward, 0, 1}, send{ActionKind::send_activation, 0, 1};
  for (const Action& action : {forward, send}) {
    first.erase(first.begin() + static_cast<std::ptrdiff_t>(place(first, action)));
    const auto after = action == forward ? Action{ActionKind::recv_gradient, 0, 0} : forward;
    first.insert(first.begin() + 1 + static_cast<std::ptrdiff_t>(place(first, after)), action);
  }
  EXPECT_THAT(fault_of(broken), HasSubstr("ranks wait for each other: rank 0 at recv_gradient of chunk 0, micro-batch 0"));
}

TEST(Schedule, NamesAndRefusals) {
  for (const ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved, ScheduleKind::zero_bubble})
    EXPECT_EQ(parse_schedule(schedule_name(kind)), kind);
  const auto refused = [](const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_config);
      return error.what_is_wrong();
    }
    return std::string();
  };
  EXPECT_EQ(refused([] { parse_schedule("1f1"); }), "unknown pipeline schedule '1f1'");
  EXPECT_EQ(refused([] { make_schedule(ScheduleKind::gpipe, 2, 2, 4); }), "the schedule 'gpipe' has no virtual stages, not 2");
  EXPECT_EQ(refused([] { make_schedule(ScheduleKind::gpipe, 0, 1, 4); }), "a pipeline with 0 stages");
  EXPECT_EQ(refused([] { make_schedule(ScheduleKind::interleaved, 2, 0, 4); }), "a pipeline with 0 virtual stages");
  EXPECT_EQ(refused([] { make_forward_schedule(2, 1, 0); }), "a pipeline with 0 micro-batches a step");
}

}  // namespace
}  // namespace baleen
