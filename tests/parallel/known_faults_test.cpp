// What users of other systems ran into (docs/known-faults.md), each tried here. Faults 1, 4 and 7 to 9 have more tests:
// first_mistakes_test.cpp, sharding_test.cpp, reshard_test.cpp, tests/faults.
#include <gtest/gtest.h>

#include "model/tensor_slices.h"
#include "parallel/small_training.h"
#include "train/layout.h"

namespace baleen {
namespace {

using namespace testing;

Record steps_on(const Layout& layout, const ModelConfig& model, std::int64_t steps = 5) {
  Training training;
  training.model = model;
  training.layout = layout;
  training.micro_batch = 1;
  training.steps = steps;
  return train(training);
}

ModelConfig four_layers(bool tied) {
  ModelConfig config = small_llama();
  config.num_hidden_layers = 4;
  config.tie_word_embeddings = tied;
  return config;
}

TEST(KnownFaults, N1_TheNormCountsEveryElementOnce) {
  const ModelConfig model = four_layers(true);
  const Record one = steps_on({}, model, 1);
  for (const Layout& layout : {Layout{.data = 2, .zero = 1, .tensor = 2}, Layout{.data = 2, .zero = 3, .replicate = 2}, Layout{.tensor = 4},
                               Layout{.data = 2, .zero = 2, .pipeline = 2}, Layout{.context = 2, .pipeline = 2}}) {
    const Record other = steps_on(layout, model, 1);
    EXPECT_NEAR(other.norms[0], one.norms[0], 1e-6 * one.norms[0]) << layout.parallel().text();
    for (std::size_t p = 0; p < one.last_weights.size(); ++p)  // the clip took the same factor
      for (std::size_t i = 0; i < one.last_weights[p].size(); ++i) ASSERT_NEAR(other.last_weights[p][i], one.last_weights[p][i], 2e-5);
  }
}

TEST(KnownFaults, N2_NormWeightsAreSummedOverTensorRanksUnderSequenceParallelism) {
  const Record one = steps_on({}, small_llama(), 1), two = steps_on({.tensor = 2}, small_llama(), 1);
  const std::vector<std::string> names = parameter_names(small_llama());
  for (std::size_t p = 0; p < names.size(); ++p) {
    if (names[p].find("norm") == std::string::npos) continue;
    std::vector<float> difference = two.first_gradients[p];
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= one.first_gradients[p][i];
    EXPECT_LE(norm(difference), 1e-5 * norm(one.first_gradients[p])) << names[p];
  }
}

TEST(KnownFaults, N3_APipelineNeitherScalesNorAveragesGradients) {
  const ModelConfig model = four_layers(false);
  const Record one = steps_on({}, model);
  for (const Layout& layout : {Layout{.pipeline = 2}, Layout{.pipeline = 4, .schedule = "gpipe"}})
    expect_equivalent(steps_on(layout, model), one);
}

TEST(KnownFaults, N4_RanksWithFewValidTokensWeighLittle) {  // UnevenBatches leaves the first ranks hardly any
  const Record one = steps_on({}, small_llama());
  for (const Layout& layout : {Layout{.data = 3}, Layout{.data = 3, .context = 2}, Layout{.data = 3, .pipeline = 2}})
    expect_equivalent(steps_on(layout, small_llama()), one);
}

TEST(KnownFaults, N5_ContextParallelismKeepsTheLossScaleAndAttentionsGradients) {
  expect_equivalent(steps_on({.context = 4}, small_llama()), steps_on({}, small_llama()));
}

TEST(KnownFaults, N6_TiedEmbeddingsUnderPipelineAndShardedOptimizer) {
  const ModelConfig model = four_layers(true);
  const Record one = steps_on({}, model);
  for (const int zero : {1, 2, 3}) expect_equivalent(steps_on({.data = 2, .zero = zero, .pipeline = 2}, model), one);
}

TEST(KnownFaults, N10_MoreTensorRanksThanKvHeads) {
  expect_equivalent(steps_on({.tensor = 4}, small_llama()), steps_on({}, small_llama()));
}

TEST(KnownFaults, N10_LayersThatStagesDoNotDivideAreAllThere) {
  ModelConfig model = small_llama();
  model.num_hidden_layers = 5;
  expect_equivalent(steps_on({.pipeline = 3}, model), steps_on({}, model));
  EXPECT_NE(layout_refusal({.pp = 6}, model, length), "");
}

TEST(KnownFaults, N10_SlicesOfAnOddVocabularyAreTheWholeOne) {
  std::int64_t rows = 0;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<UnitDescription> units = model_units(small_llama());
    slice_units(units, {rank, 4, true});
    const HeldBox& held = units[0].parameters[0].held;
    EXPECT_EQ(held.begin[0], rows);
    rows = held.end[0];
  }
  EXPECT_EQ(rows, vocabulary);  // 41: nothing is padded, so nothing can leak into an export
}

}  // namespace
}  // namespace baleen
