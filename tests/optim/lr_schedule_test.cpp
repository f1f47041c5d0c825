#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace baleen {
namespace {

LrSchedule schedule(LrScheduleKind kind, std::int64_t warmup, std::int64_t decay) {
  return {kind, 2.0, warmup, decay, 100, 0.1};
}

TEST(LrSchedule, WarmUpRisesFromTheFirstStep) {
  const LrSchedule s = schedule(LrScheduleKind::constant, 10, 0);
  EXPECT_DOUBLE_EQ(s.at(1), 0.2);
  EXPECT_DOUBLE_EQ(s.at(9), 1.8);
  EXPECT_DOUBLE_EQ(s.at(10), 2.0);
  EXPECT_DOUBLE_EQ(s.at(100), 2.0);
  EXPECT_DOUBLE_EQ(schedule(LrScheduleKind::constant, 0, 0).at(1), 2.0);
}

TEST(LrSchedule, CosineEndsAtTheFinalFractionAndStaysThere) {
  const LrSchedule s = schedule(LrScheduleKind::cosine, 20, 100);
  EXPECT_DOUBLE_EQ(s.at(20), 2.0);
  EXPECT_NEAR(s.at(60), 2.0 * (0.1 + 0.9 / 2), 1e-12);  // half way
  EXPECT_NEAR(s.at(100), 0.2, 1e-12);
  EXPECT_NEAR(s.at(500), 0.2, 1e-12);
}

TEST(LrSchedule, LinearFallsEvenly) {
  const LrSchedule s = schedule(LrScheduleKind::linear, 0, 100);
  EXPECT_NEAR(s.at(50), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(s.at(100), 0.2, 1e-12);
}

TEST(LrSchedule, WsdIsStableThenDecays) {
  const LrSchedule s = schedule(LrScheduleKind::wsd, 10, 20);
  EXPECT_DOUBLE_EQ(s.at(5), 1.0);
  EXPECT_DOUBLE_EQ(s.at(80), 2.0);
  EXPECT_NEAR(s.at(90), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(s.at(100), 0.2, 1e-12);
}

TEST(LrSchedule, DegenerateRangesStayFinite) {
  EXPECT_DOUBLE_EQ(schedule(LrScheduleKind::cosine, 50, 10).at(50), 2.0);  // decays at once after the warm-up
  EXPECT_NEAR(schedule(LrScheduleKind::cosine, 50, 10).at(51), 0.2, 1e-12);
  EXPECT_DOUBLE_EQ(schedule(LrScheduleKind::linear, 0, 0).at(0), 2.0);
}

}  // namespace
}  // namespace baleen
