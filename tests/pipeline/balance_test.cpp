// Stages of equal cost.
#include "pipeline/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "base/error.h"

namespace baleen {
namespace {

std::vector<int> layers_of(const std::vector<StageRange>& ranges) {
  std::vector<int> out;
  for (const StageRange& range : ranges) out.push_back(range.layers);
  return out;
}

double most(const std::vector<StageRange>& ranges, const std::vector<double>& costs, double embedding, double head) {
  double out = 0;
  for (std::size_t stage = 0; stage < ranges.size(); ++stage) {
    double sum = (stage == 0 ? embedding : 0) + (stage + 1 == ranges.size() ? head : 0);
    for (int layer = ranges[stage].first_layer; layer < ranges[stage].end(); ++layer) sum += costs[static_cast<std::size_t>(layer)];
    out = std::max(out, sum);
  }
  return out;
}

// The best of all cuts, tried one by one.
double best_of_all(const std::vector<double>& costs, double embedding, double head, int chunks, int first = 0, bool begins = true) {
  const int layers = static_cast<int>(costs.size()) - first;
  double sum = begins ? embedding : 0, best = std::numeric_limits<double>::infinity();
  for (int take = 1; take <= layers - (chunks - 1); ++take) {
    sum += costs[static_cast<std::size_t>(first + take - 1)];
    if (chunks == 1 && take < layers) continue;
    const double rest = chunks == 1 ? 0 : best_of_all(costs, embedding, head, chunks - 1, first + take, false);
    best = std::min(best, std::max(sum + (chunks == 1 ? head : 0), rest));
  }
  return best;
}

TEST(Balance, EqualLayersDivide) {
  EXPECT_EQ(layers_of(balance_stages(std::vector<double>(12, 1.0), 0, 0, 4)), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(balance_stages(std::vector<double>(4, 1.0), 0, 0, 2), (std::vector<StageRange>{{0, 2}, {2, 2}}));
}

// A head as expensive as three layers takes the place of three.
TEST(Balance, EmbeddingAndHeadCount) {
  EXPECT_EQ(layers_of(balance_stages(std::vector<double>(13, 1.0), 0, 3, 4)), (std::vector<int>{4, 4, 4, 1}));
  EXPECT_EQ(layers_of(balance_stages(std::vector<double>(13, 1.0), 3, 0, 4)), (std::vector<int>{1, 4, 4, 4}));
  // More than its share: the others are as even as can be all the same.
  EXPECT_EQ(layers_of(balance_stages(std::vector<double>(10, 1.0), 0, 20, 4)), (std::vector<int>{3, 3, 3, 1}));
}

TEST(Balance, IsTheBestOfAllCuts) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> cost(0.1, 3.0);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<double> costs(static_cast<std::size_t>(4 + trial % 7));
    for (double& value : costs) value = cost(random);
    const double embedding = cost(random) * (trial % 3), head = cost(random) * (trial % 2) * 2;
    for (int chunks = 1; chunks <= 4; ++chunks) {
      const auto ranges = balance_stages(costs, embedding, head, chunks);
      int next = 0;
      for (const StageRange& range : ranges) {
        ASSERT_EQ(range.first_layer, next);
        ASSERT_GE(range.layers, 1);
        next = range.end();
      }
      ASSERT_EQ(next, static_cast<int>(costs.size()));
      ASSERT_NEAR(most(ranges, costs, embedding, head), best_of_all(costs, embedding, head, chunks), 1e-9);
    }
  }
}

TEST(Balance, RefusesMoreStagesThanLayers) {
  try {
    balance_stages(std::vector<double>(3, 1.0), 0, 0, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_EQ(error.what_is_wrong(), "4 pipeline stages for 3 layers: each needs one");
  }
}

}  // namespace
}  // namespace baleen
