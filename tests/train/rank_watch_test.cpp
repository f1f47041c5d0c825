// Which rank is called slow.
#include "train/rank_watch.h"

#include <gtest/gtest.h>

namespace baleen {
namespace {

TEST(SlowestRank, IsNamedWithThePhaseThatTakesItLonger) {
  const std::vector<OwnTimes> ranks{{{0.1, 1.0, 2.0}, 0}, {{0.1, 1.1, 2.0}, 0}, {{0.1, 1.0, 4.0}, 0}, {{0.1, 1.0, 2.1}, 0}};
  const auto slow = slowest_rank(ranks, 6.0);
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->rank, 2);
  EXPECT_STREQ(OwnTimes::phases[static_cast<std::size_t>(slow->phase)], "the backward pass");
  EXPECT_DOUBLE_EQ(slow->seconds, 5.1);
  EXPECT_DOUBLE_EQ(slow->usual, 3.1);
}

TEST(SlowestRank, OfTwoTheOtherIsWhatIsUsual) {
  const auto slow = slowest_rank({{{2.0, 1.0, 1.0}, 0}, {{0.1, 1.0, 1.0}, 0}}, 4.0);
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->rank, 0);
  EXPECT_STREQ(OwnTimes::phases[static_cast<std::size_t>(slow->phase)], "reading data");
}

TEST(SlowestRank, IsNobodyWhereTheDifferenceIsSmallOrTheStagesDiffer) {
  EXPECT_FALSE(slowest_rank({{{0, 1, 1}, 0}, {{0, 1, 1.9}, 0}}, 3.0).has_value());            // 1.45 times
  EXPECT_FALSE(slowest_rank({{{0, 0.01, 0.01}, 0}, {{0, 0.02, 0.03}, 0}}, 3.0).has_value());  // 1 % of the time
  EXPECT_FALSE(slowest_rank({{{0, 1, 1}, 0}, {{0, 1, 1}, 0}, {{0, 3, 3}, 1}, {{0, 3, 3}, 1}}, 8.0).has_value());
  // Alone on its stage: all ranks are its peers.
  EXPECT_TRUE(slowest_rank({{{0, 1, 1}, 0}, {{0, 3, 3}, 1}}, 8.0).has_value());
}

}  // namespace
}  // namespace baleen
