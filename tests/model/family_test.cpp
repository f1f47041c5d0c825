// What a checkpoint of each family holds: Hugging Face's names and shapes, and the initial values.
#include "model/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace baleen {
namespace {

ModelConfig small_model(const std::string& architecture) {
  ModelConfig config = default_model(architecture, "");
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = config.is_gpt2() ? 4 : 2;
  config.vocab_size = 100;
  config.max_position_embeddings = 50;
  complete_and_validate(config, "");
  return config;
}

std::vector<std::string> described(const UnitDescription& unit) {
  std::vector<std::string> all;
  for (const ParameterDescription& parameter : unit.parameters) {
    std::string text = parameter.name;
    for (const std::int64_t extent : parameter.shape) text += " " + std::to_string(extent);
    all.push_back(text);
  }
  return all;
}

// As `transformers` 4.57 lists them: GPT2LMHeadModel(GPT2Config(n_embd=64, n_inner=96, ...)).state_dict().
TEST(Families, Gpt2HasHuggingFacesNamesAndShapes) {
  const std::vector<UnitDescription> units = model_units(small_model("gpt2"));
  ASSERT_EQ(units.size(), 4u);
  EXPECT_THAT(described(units[0]), ::testing::ElementsAre("transformer.wte.weight 100 64", "transformer.wpe.weight 50 64"));
  EXPECT_THAT(described(units[2]),
              ::testing::UnorderedElementsAre(
                  "transformer.h.1.ln_1.weight 64", "transformer.h.1.ln_1.bias 64", "transformer.h.1.attn.c_attn.weight 64 192",
                  "transformer.h.1.attn.c_attn.bias 192", "transformer.h.1.attn.c_proj.weight 64 64", "transformer.h.1.attn.c_proj.bias 64",
                  "transformer.h.1.ln_2.weight 64", "transformer.h.1.ln_2.bias 64", "transformer.h.1.mlp.c_fc.weight 64 96",
                  "transformer.h.1.mlp.c_fc.bias 96", "transformer.h.1.mlp.c_proj.weight 96 64", "transformer.h.1.mlp.c_proj.bias 64"));
  EXPECT_THAT(described(units[3]), ::testing::ElementsAre("transformer.ln_f.weight 64", "transformer.ln_f.bias 64"));
}

TEST(Families, QwenHasHuggingFacesNamesAndShapes) {
  EXPECT_THAT(described(model_units(small_model("qwen2"))[1]),
              ::testing::IsSupersetOf({"model.layers.0.self_attn.q_proj.weight 64 64", "model.layers.0.self_attn.q_proj.bias 64",
                                       "model.layers.0.self_attn.k_proj.bias 32", "model.layers.0.self_attn.v_proj.bias 32"}));
  EXPECT_THAT(described(model_units(small_model("qwen2"))[1]),
              ::testing::Not(::testing::Contains("model.layers.0.self_attn.o_proj.bias 64")));
  EXPECT_THAT(described(model_units(small_model("qwen3"))[1]),
              ::testing::IsSupersetOf({"model.layers.0.self_attn.q_norm.weight 16", "model.layers.0.self_attn.k_norm.weight 16"}));
  ModelConfig biased = small_model("llama");
  biased.attention_bias = true;
  EXPECT_THAT(described(model_units(biased)[1]), ::testing::Contains("model.layers.0.self_attn.o_proj.bias 64"));
}

// Mean and deviation of the initial values of a parameter.
std::pair<double, double> statistics(const Tensor& tensor) {
  double sum = 0, squares = 0;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) {
    sum += tensor.as<float>()[i];
    squares += std::pow(tensor.as<float>()[i], 2);
  }
  const auto count = static_cast<double>(tensor.elements());
  return {sum / count, std::sqrt(squares / count - std::pow(sum / count, 2))};
}

TEST(Families, InitialWeightsHaveTheirDeviations) {
  const auto device = create_cpu_device();
  for (const std::string& architecture : architecture_names()) {
    ModelConfig config = small_model(architecture);
    config.num_hidden_layers = 8;  // 1 / sqrt(2L) is a quarter
    config.initializer_range = 0.03;
    UnitStorage units(*device, model_units(config), 1, StorageKind::inference);
    units.initialize_weights(5);
    for (const ParameterId id : units.parameters()) {
      const std::string& name = units.parameter(id).name;
      const auto [mean, deviation] = statistics(units.weight(id));
      if (units.parameter(id).shape.size() == 2) {
        const double expected = name.ends_with("c_proj.weight") ? 0.03 / 4 : 0.03;
        EXPECT_NEAR(deviation, expected, 0.06 * expected) << name;  // 4 deviations of the smallest matrix's estimate
        EXPECT_NEAR(mean, 0, 0.1 * expected) << name;
      } else {
        EXPECT_EQ(mean, name.ends_with("bias") ? 0 : 1) << name;
        EXPECT_EQ(deviation, 0) << name;
      }
    }
  }
}

}  // namespace
}  // namespace baleen
