#include "data/shuffle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"

namespace baleen {
namespace {

std::vector<std::uint64_t> order(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
  const Shuffle shuffle(size, seed, epoch);
  std::vector<std::uint64_t> values(size);
  for (std::uint64_t i = 0; i < size; ++i) values[i] = shuffle(i);
  return values;
}

TEST(Shuffle, IsAPermutationOfAnySize) {
  std::vector<std::uint64_t> sizes{999, 1000, 1024, 4095, 4096, 4097, 65537, 100'003};
  for (std::uint64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const std::uint64_t size : sizes) {
    std::vector<bool> seen(size);
    for (const std::uint64_t value : order(size, 1234, size % 3)) {
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << size << " " << value;
      seen[value] = true;
    }
  }
}

TEST(Shuffle, DiffersByEpochAndSeedAndIsTheSameAgain) {
  const auto first = order(1000, 1234, 0);
  EXPECT_EQ(first, order(1000, 1234, 0));
  for (const auto& other : {order(1000, 1234, 1), order(1000, 1234, 2), order(1000, 1235, 0)}) {
    int same = 0;
    for (std::size_t i = 0; i < first.size(); ++i) same += first[i] == other[i] ? 1 : 0;
    EXPECT_LT(same, 12);  // the number of agreements of two random orders is Poisson with mean 1
  }
}

// Made by tests/golden/shuffle.py. Part of the contract: a checkpoint of today goes on with the same samples tomorrow.
TEST(Shuffle, StaysWhatItIs) {
  const auto values = order(20, 1234, 0);
  EXPECT_EQ(values, (std::vector<std::uint64_t>{11, 8, 10, 19, 16, 15, 17, 6, 1, 5, 13, 2, 0, 4, 3, 18, 7, 12, 9, 14}));
}

// Every value at every place equally often over many epochs: χ² with (n - 1)² degrees of freedom, within 6 standard deviations.
TEST(Shuffle, IsUniformOverEpochs) {
  for (const std::uint64_t size : {2, 3, 5, 7, 12}) {
    const int epochs = 20'000;
    std::vector<int> count(size * size);
    for (int epoch = 0; epoch < epochs; ++epoch) {
      const auto values = order(size, 99, static_cast<std::uint64_t>(epoch));
      for (std::uint64_t i = 0; i < size; ++i) ++count[i * size + values[i]];
    }
    const double expected = epochs / static_cast<double>(size), freedom = static_cast<double>((size - 1) * (size - 1));
    double chi2 = 0;
    for (const int c : count) chi2 += (c - expected) * (c - expected) / expected;
    EXPECT_LT(std::abs(chi2 - freedom), 6 * std::sqrt(2 * freedom)) << size;
  }
}

TEST(Shuffle, LooksRandomInOneEpoch) {
  const std::uint64_t size = 100'000;
  const auto values = order(size, 7, 3);
  // Correlations of place with value, of neighbours, and of values a stride apart: mean 0, standard deviation 1 / sqrt(n).
  const double mean = (static_cast<double>(size) - 1) / 2, variance = (static_cast<double>(size) * static_cast<double>(size) - 1) / 12;
  for (const std::uint64_t stride : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{317}}) {  // 317: the grid's width
    double sum = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      const double a = stride == 0 ? static_cast<double>(i) : static_cast<double>(values[(i + stride) % size]);
      sum += (a - mean) * (static_cast<double>(values[i]) - mean);
    }
    EXPECT_LT(std::abs(sum / static_cast<double>(size) / variance), 5 / std::sqrt(static_cast<double>(size))) << stride;
  }
  // Fixed points are Poisson with mean 1, and ascending pairs half of all.
  int fixed = 0, ascending = 0;
  for (std::uint64_t i = 0; i < size; ++i) {
    fixed += values[i] == i ? 1 : 0;
    ascending += i > 0 && values[i] > values[i - 1] ? 1 : 0;
  }
  EXPECT_LT(fixed, 10);
  EXPECT_NEAR(ascending, 50'000, 5 * std::sqrt(static_cast<double>(size) / 12));
}

TEST(Shuffle, TakesSizesOfBillionsWithoutMemory) {
  const std::uint64_t size = std::uint64_t{1} << 40;
  const Shuffle shuffle(size, 1, 0);
  double sum = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::uint64_t value = shuffle(i);
    ASSERT_LT(value, size);
    sum += static_cast<double>(value) / static_cast<double>(size);
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 5 / std::sqrt(12.0 * 10'000));
  EXPECT_THROW((void)shuffle(size), Error);
}

}  // namespace
}  // namespace baleen
