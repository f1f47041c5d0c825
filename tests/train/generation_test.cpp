// The key-value cache gives the logits of the whole sequence, and sampling draws what it should.
#include "train/generation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace baleen {
namespace {

ModelConfig small_model(const std::string& architecture = "llama") {
  ModelConfig config = default_model(architecture, "");
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = config.is_gpt2() ? 4 : 2;
  config.head_dim = 6;
  config.vocab_size = 31;
  config.max_position_embeddings = 32;
  config.initializer_range = 0.5;  // far from uniform, so that a wrong cache changes the text
  return config;
}

std::vector<std::int32_t> generate(std::int64_t capacity, const std::vector<std::int32_t>& prompt, std::int64_t tokens,
                                   const std::string& architecture = "llama") {
  Generator generator(small_model(architecture), capacity, 1);
  generator.units().initialize_weights(3);
  std::vector<std::int32_t> ids;
  generator.generate(prompt, {tokens, {.temperature = 0}}, [&](std::int32_t id) { ids.push_back(id); });
  return ids;
}

TEST(Generator, TheCacheGivesWhatTheWholeSequenceGives) {
  for (const std::string& architecture : architecture_names()) {
    const std::vector<std::int32_t> prompt{5, 9, 2};
    const std::vector<std::int32_t> cached = generate(32, prompt, 20, architecture);
    // Each token again, from a prompt that holds all before it.
    std::vector<std::int32_t> text = prompt;
    for (const std::int32_t id : cached) {
      EXPECT_EQ(generate(32, text, 1, architecture).front(), id) << architecture << " after " << text.size() << " tokens";
      text.push_back(id);
    }
  }
}

TEST(Generator, GoesOnWhenTheCacheIsFull) {
  const std::vector<std::int32_t> ids = generate(8, {1, 2, 3}, 40);
  ASSERT_EQ(ids.size(), 40u);
  // Up to the first time the cache is full nothing differs from a larger one.
  const std::vector<std::int32_t> large = generate(32, {1, 2, 3}, 6);
  EXPECT_TRUE(std::equal(large.begin(), large.end(), ids.begin()));
}

TEST(Generator, IdsOfThePromptBeyondTheVocabularyAreNamed) {
  for (const std::int32_t id : {31, -1}) {
    try {
      generate(8, {1, id}, 1);
      ADD_FAILURE() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find("token id " + std::to_string(id) + " at position 1"), std::string::npos) << error.what();
    }
  }
}

TEST(SampleToken, TemperatureZeroTakesTheFirstOfTheLargest) {
  const std::vector<float> logits{1, 3, 3, 2};
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, 0.99), 1);
}

TEST(SampleToken, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits{std::log(1.0f), std::log(3.0f), std::log(6.0f)};
  std::vector<int> counts(3);
  constexpr int draws = 1000;
  for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sample_token(logits, {}, (i + 0.5) / draws))];
  EXPECT_EQ(counts, (std::vector<int>{100, 300, 600}));
  std::fill(counts.begin(), counts.end(), 0);
  for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sample_token(logits, {.temperature = 0.5}, (i + 0.5) / draws))];
  EXPECT_NEAR(counts[2], draws * 36.0 / 46, 1);
}

TEST(SampleToken, TopKAndTopPLeaveTheMostLikely) {
  const std::vector<float> logits{std::log(1.0f), std::log(3.0f), std::log(4.0f), std::log(2.0f)};
  const auto count = [&](const Sampling& sampling) {
    std::vector<int> counts(4);
    constexpr int draws = 700;
    for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sample_token(logits, sampling, (i + 0.5) / draws))];
    return counts;
  };
  EXPECT_EQ(count({.top_k = 2}), (std::vector<int>{0, 300, 400, 0}));
  EXPECT_EQ(count({.top_k = 1}), (std::vector<int>{0, 0, 700, 0}));
  EXPECT_EQ(count({.top_p = 0.69}), (std::vector<int>{0, 300, 400, 0}));  // 0.4 is too little, 0.7 enough
  EXPECT_EQ(count({.top_p = 0.71})[3] > 0, true);
  EXPECT_EQ(count({.top_p = 0.01}), (std::vector<int>{0, 0, 700, 0}));
  EXPECT_EQ(count({.top_k = 3, .top_p = 0.5}), (std::vector<int>{0, 300, 400, 0}));  // of 4/9, 3/9, 2/9
}

}  // namespace
}  // namespace baleen
