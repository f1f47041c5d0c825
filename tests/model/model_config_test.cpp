#include "model/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/llama_parameters.h"
#include "model/rope_table.h"

namespace baleen {
namespace {

constexpr const char* llama_json = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
  "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 512, "rope_theta": 500000.0,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
  "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

ExitCode code_of(const std::string& json) {
  try {
    parse_model_config(json, "config.json");
  } catch (const Error& error) {
    return error.code();
  }
  return ExitCode::done;
}

std::string with(const char* key, const nlohmann::json& value) {
  auto object = nlohmann::json::parse(llama_json);
  object[key] = value;
  return object.dump();
}

TEST(ModelConfig, ReadsAndWritesConfigJson) {
  const ModelConfig config = parse_model_config(llama_json, "config.json");
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.rope_scaling.type, "llama3");
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(model_config_json(parse_model_config(model_config_json(config), "again")), model_config_json(config));
}

TEST(ModelConfig, RefusesWhatItCannotRun) {
  EXPECT_EQ(code_of(llama_json), ExitCode::done);
  EXPECT_EQ(code_of("{"), ExitCode::bad_data);
  EXPECT_EQ(code_of("[]"), ExitCode::bad_data);
  EXPECT_EQ(code_of(std::string(100000, '[')), ExitCode::bad_data);
  EXPECT_EQ(code_of(with("hidden_size", "64")), ExitCode::bad_data);
  EXPECT_EQ(code_of(with("hidden_size", 64.5)), ExitCode::bad_data);
  EXPECT_EQ(code_of(with("hidden_size", 18446744073709551615ull)), ExitCode::bad_data);
  EXPECT_EQ(code_of(with("hidden_size", -64)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("num_hidden_layers", 1000000000)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("num_attention_heads", 7)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("num_key_value_heads", 3)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("head_dim", 7)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("model_type", "mamba")), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("attention_bias", true)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("hidden_act", "gelu")), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}})), ExitCode::bad_config);
}

TEST(ModelConfig, CountsParametersAsTheUnitsDo) {
  for (const bool tied : {true, false}) {
    ModelConfig config = parse_model_config(with("tie_word_embeddings", tied), "config.json");
    std::int64_t described = 0;
    for (const UnitDescription& unit : llama_units(config))
      for (const ParameterDescription& parameter : unit.parameters) described += parameter.elements();
    EXPECT_EQ(config.parameters(), described);
  }
}

TEST(ModelConfig, PresetsHaveThePublishedSizes) {
  // Parameters of the published checkpoints.
  EXPECT_EQ(model_preset("llama-3.2-1b", "").parameters(), 1235814400);
  EXPECT_EQ(model_preset("llama-3.2-3b", "").parameters(), 3212749824);
  EXPECT_EQ(model_preset("llama-3.1-8b", "").parameters(), 8030261248);
  EXPECT_THROW(model_preset("nothing", ""), Error);
}

TEST(RopeTable, Llama3KeepsShortWavelengthsAndDividesLongOnes) {
  ModelConfig config = model_preset("llama-3.2-1b", "");
  const std::vector<double> scaled = rope_inverse_frequencies(config);
  config.rope_scaling = RopeScaling{};
  const std::vector<double> plain = rope_inverse_frequencies(config);
  EXPECT_EQ(scaled.front(), plain.front());
  EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 32);
  for (std::size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
}

}  // namespace
}  // namespace baleen
