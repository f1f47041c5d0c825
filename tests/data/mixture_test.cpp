// Mixtures: exact proportions, each source in its own order without gap, the same whatever was asked before.
#include "data/mixture.h"

#include <algorithm>
#include <map>

#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

TEST(MixtureOrder, KeepsProportionsAndOrder) {
  const std::vector<double> weights{7, 2, 1};
  const MixtureOrder order(weights);
  std::array<std::uint64_t, 3> next{};
  for (std::uint64_t position = 0; position < 5000; ++position) {
    const auto place = order.at(position);
    ASSERT_EQ(place.position, next[place.source]++) << position;  // in order, without a gap
    for (std::size_t source = 0; source < 3; ++source)
      ASSERT_NEAR(static_cast<double>(next[source]), weights[source] / 10 * static_cast<double>(position + 1), 2) << position;
  }
  // Far out, too, where doubles would have lost count.
  const std::uint64_t far = std::uint64_t{1} << 45;
  std::array<std::uint64_t, 3> before{};
  for (std::uint64_t position = far; position < far + 100; ++position) {
    const auto place = order.at(position);
    if (before[place.source] > 0) {
      ASSERT_EQ(place.position, before[place.source] + 1);
    }
    before[place.source] = place.position;
  }
}

TEST(MixtureOrder, OneSourceIsItselfAndNoWeightIsLost) {
  EXPECT_EQ(MixtureOrder({0.3}).at(77).position, 77u);
  EXPECT_ERROR(MixtureOrder({1, 1e-12}), ExitCode::bad_config, "data.weights");
  EXPECT_ERROR(MixtureOrder({1e-12, 1}), ExitCode::bad_config, "data.weights");
}

std::unique_ptr<TokenDataset> counting(const TemporaryFolder& folder, const std::string& name, std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = first + static_cast<std::int32_t>(i);
  TokenFileWriter writer(folder / name, TokenFormat::llmc_uint32);
  writer.append(ids);
  writer.finish();
  const std::vector<std::filesystem::path> files{folder / name};
  return std::make_unique<TokenDataset>(
      files, DatasetOptions{.sequence_length = 4, .global_batch_size = 6, .vocabulary = 1 << 20, .order = DataOrder::shuffled, .seed = 3});
}

TEST(MixedDataset, EpochsOfEachSourceAreWhole) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<TokenDataset>> sources;
  sources.push_back(counting(folder, "a.bin", 0, 401));    // 100 samples
  sources.push_back(counting(folder, "b.bin", 1000, 81));  // 20 samples
  const MixedDataset mixed(std::move(sources), {0.5, 0.5});
  std::map<std::int32_t, int> count;  // by first token
  std::vector<std::int32_t> inputs(24), targets(24);
  int of_b = 0;
  for (std::uint64_t step = 0; step < 50; ++step) {
    mixed.fill(step, 0, 6, inputs.data(), targets.data());
    for (int i = 0; i < 6; ++i) {
      ++count[inputs[4 * static_cast<std::size_t>(i)]];
      if (inputs[4 * static_cast<std::size_t>(i)] >= 1000) ++of_b;
      EXPECT_EQ(targets[4 * static_cast<std::size_t>(i) + 3], inputs[4 * static_cast<std::size_t>(i)] + 4);
    }
  }
  EXPECT_EQ(of_b, 150);
  // b went round seven times and a half, a once and a half: each sample as often as every other, but for the epoch under way.
  EXPECT_EQ(count.size(), 120u);
  for (const auto& [first, times] : count) {
    EXPECT_GE(times, first >= 1000 ? 7 : 1) << first;
    EXPECT_LE(times, first >= 1000 ? 8 : 2) << first;
  }

  // A part of a batch is that part of the whole.
  std::vector<std::int32_t> two(8), two_targets(8);
  mixed.fill(49, 3, 2, two.data(), two_targets.data());
  EXPECT_TRUE(std::equal(two.begin(), two.end(), inputs.begin() + 12));
}

TEST(MixedDataset, FingerprintKnowsTheWeights) {
  const TemporaryFolder folder;
  const auto mixture = [&](std::vector<double> weights) {
    std::vector<std::unique_ptr<TokenDataset>> sources;
    sources.push_back(counting(folder, "a.bin", 0, 401));
    sources.push_back(counting(folder, "b.bin", 1000, 81));
    return MixedDataset(std::move(sources), std::move(weights)).fingerprint();
  };
  const DataFingerprint print = mixture({0.5, 0.5}), again = DataFingerprint::from_json(print.to_json(), "test");
  EXPECT_NO_THROW(check_same_data(again, mixture({0.5, 0.5})));
  EXPECT_EQ(again.files.size(), 2u);
  EXPECT_ERROR(check_same_data(again, mixture({0.6, 0.4})), ExitCode::bad_config, "data.weights");
}

}  // namespace
}  // namespace baleen
