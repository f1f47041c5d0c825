#include "model/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "model/family.h"
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
  auto object = parse_json(llama_json, "test");
  object[key] = value;
  return dump_json(object);
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
  EXPECT_EQ(code_of(with("attention_bias", true)), ExitCode::done);
  EXPECT_EQ(code_of(with("mlp_bias", true)), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("hidden_act", "gelu")), ExitCode::bad_config);
  EXPECT_EQ(code_of(with("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}})), ExitCode::bad_config);
}

// The small config.json of each architecture, as transformers writes them.
nlohmann::json family_json(const std::string& architecture) {
  if (architecture == "gpt2")
    return parse_json(R"({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 50, "n_ctx": 50, "vocab_size": 37,
      "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "initializer_range": 0.02, "n_inner": null, "resid_pdrop": 0.1})",
                      "test");
  auto object = parse_json(llama_json, "test");
  object["model_type"] = architecture;
  object.erase("rope_scaling");
  if (architecture == "mistral") object["sliding_window"] = nullptr;
  if (architecture == "qwen2") object.update({{"use_sliding_window", false}, {"sliding_window", 131072}, {"max_window_layers", 28}});
  if (architecture == "qwen3")
    object.update({{"head_dim", 32}, {"attention_bias", false}, {"layer_types", {"full_attention", "full_attention"}}});
  return object;
}

std::string refusal(nlohmann::json object, const nlohmann::json& change) {
  object.update(change);
  try {
    parse_model_config(dump_json(object), "config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    return error.what();
  }
  return "accepted";
}

TEST(ModelConfig, EveryFamilyReadsAndWritesConfigJson) {
  for (const std::string& architecture : architecture_names()) {
    const ModelConfig config = parse_model_config(dump_json(family_json(architecture)), "config.json");
    EXPECT_EQ(config.architecture, architecture);
    const std::string text = model_config_json(config);
    EXPECT_EQ(model_config_json(parse_model_config(text, "again")), text);
    EXPECT_EQ(parse_json(text, "test")["model_type"], architecture);
  }
  const ModelConfig gpt2 = parse_model_config(dump_json(family_json("gpt2")), "config.json");
  EXPECT_EQ(gpt2.intermediate_size, 96);
  EXPECT_EQ(gpt2.head_dim, 8);
  EXPECT_EQ(gpt2.max_position_embeddings, 50);
  EXPECT_TRUE(gpt2.tie_word_embeddings);
  EXPECT_EQ(parse_json(model_config_json(gpt2), "test")["n_embd"], 24);
  auto without_width = family_json("qwen3");
  without_width.erase("head_dim");
  EXPECT_EQ(parse_model_config(dump_json(without_width), "config.json").head_dim, 128);
  // Where transformers 5 keeps the base of the rotary angles.
  auto nested = family_json("qwen2");
  nested.erase("rope_theta");
  nested["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse_model_config(dump_json(nested), "config.json").rope_theta, 1e6);
}

// As transformers 5.24's configuration classes have them.
TEST(ModelConfig, AbsentKeysAreWhatTransformersTakes) {
  struct Absent {
    const char* architecture;
    std::int64_t kv_heads, positions;
  };
  for (const auto& [architecture, kv_heads, positions] : {Absent{"llama", 64, 2048}, {"qwen2", 32, 32768}, {"qwen3", 32, 32768}}) {
    auto json = family_json(architecture);
    json["num_attention_heads"] = 64;
    json["head_dim"] = 4;
    for (const char* key : {"num_key_value_heads", "max_position_embeddings"}) json.erase(key);
    const ModelConfig config = parse_model_config(dump_json(json), "config.json");
    EXPECT_EQ(config.num_key_value_heads, kv_heads) << architecture;
    EXPECT_EQ(config.max_position_embeddings, positions) << architecture;
    json["num_key_value_heads"] = nullptr;
    EXPECT_EQ(parse_model_config(dump_json(json), "config.json").num_key_value_heads, 64) << architecture;
  }
  auto mistral = family_json("mistral");
  mistral.erase("max_position_embeddings");  // 131,072, of which a window of 4,096 would be seen
  mistral.erase("sliding_window");
  EXPECT_NE(refusal(mistral, nlohmann::json::object()).find("sliding_window"), std::string::npos);
}

TEST(ModelConfig, RopeScalingHasItsKeys) {
  const nlohmann::json whole{{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}};
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    auto scaling = whole;
    scaling.erase(key);
    try {
      parse_model_config(with("rope_scaling", scaling), "config.json");
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
      EXPECT_NE(std::string(error.what()).find(std::string(key) + " is missing"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(code_of(with("rope_scaling", {{"type", "linear"}})), ExitCode::bad_data);
  EXPECT_EQ(code_of(with("rope_scaling", {{"type", "linear"}, {"factor", 2.0}})), ExitCode::done);
  EXPECT_EQ(code_of(with("rope_scaling", {{"type", "default"}})), ExitCode::done);
  // original_max_position_embeddings: outside, else inside, else max_position_embeddings (transformers 5.24).
  auto object = parse_json(with("rope_scaling", whole), "test");
  const auto original = [&] { return parse_model_config(dump_json(object), "config.json").rope_scaling.original_max_position_embeddings; };
  EXPECT_EQ(original(), 512);
  object["rope_scaling"]["original_max_position_embeddings"] = 128;
  EXPECT_EQ(original(), 128);
  object["original_max_position_embeddings"] = 64;
  EXPECT_EQ(original(), 64);
  ModelConfig changed = parse_model_config(dump_json(object), "config.json");
  changed.rope_scaling.original_max_position_embeddings = 32;
  EXPECT_EQ(parse_model_config(model_config_json(changed), "again").rope_scaling.original_max_position_embeddings, 32);
}

TEST(ModelConfig, ModelTypeIsRequired) {
  auto object = parse_json(llama_json, "test");
  object.erase("model_type");
  EXPECT_EQ(code_of(dump_json(object)), ExitCode::bad_data);
}

TEST(ModelConfig, RefusesByNameWhatAFamilyDoesNotHave) {
  const auto names = [](const std::string& message, const char* word) { EXPECT_NE(message.find(word), std::string::npos) << message; };
  names(refusal(family_json("mistral"), {{"sliding_window", 4096}}), "sliding_window");
  names(refusal(family_json("qwen2"), {{"use_sliding_window", true}}), "use_sliding_window");
  names(refusal(family_json("qwen3"), {{"layer_types", {"full_attention", "sliding_attention"}}}), "layer_types");
  names(refusal(family_json("mistral"), {{"attention_bias", true}}), "attention_bias");
  names(refusal(family_json("qwen2"), {{"attention_bias", false}}), "attention_bias");
  names(refusal(family_json("gpt2"), {{"activation_function", "relu"}}), "activation_function");
  names(refusal(family_json("gpt2"), {{"scale_attn_weights", false}}), "scale_attn_weights");
  names(refusal(family_json("gpt2"), {{"scale_attn_by_inverse_layer_idx", true}}), "scale_attn_by_inverse_layer_idx");
  names(refusal(family_json("gpt2"), {{"n_head", 5}}), "num_attention_heads");
  EXPECT_EQ(refusal(family_json("gpt2"), {{"activation_function", "gelu_pytorch_tanh"}}), "accepted");
}

TEST(ModelConfig, CountsParametersAsTheUnitsDo) {
  for (const std::string& architecture : architecture_names())
    for (const bool tied : {true, false})
      for (const bool bias : {true, false}) {
        auto object = family_json(architecture);
        object["tie_word_embeddings"] = tied;
        if (architecture == "llama" || architecture == "qwen3") object["attention_bias"] = bias;
        const ModelConfig config = parse_model_config(dump_json(object), "config.json");
        std::int64_t described = 0, matrices = 0;
        for (const UnitDescription& unit : model_units(config))
          for (const ParameterDescription& parameter : unit.parameters) {
            described += parameter.elements();
            if (parameter.shape.size() == 2 && unit.name != "embedding") matrices += parameter.elements();
          }
        if (tied) matrices += config.vocab_size * config.hidden_size;
        EXPECT_EQ(config.parameters(), described) << architecture << tied << bias;
        EXPECT_EQ(config.matmul_parameters(), matrices) << architecture << tied << bias;
        const double attention = 6.0 * 2 * 10 * static_cast<double>(config.num_attention_heads * config.head_dim);
        EXPECT_EQ(config.flops_per_token(10), 6.0 * static_cast<double>(matrices) + attention);
      }
}

TEST(ModelConfig, PresetsHaveThePublishedSizes) {
  // Parameters of the published checkpoints.
  const std::pair<const char*, std::int64_t> published[] = {
      {"llama-3.2-1b", 1235814400}, {"llama-3.2-3b", 3212749824}, {"llama-3.1-8b", 8030261248}, {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-3b", 3085938688},   {"qwen2.5-7b", 7615616512},   {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},   {"mistral-7b", 7248023552},   {"gpt2-124m", 124439808}};
  for (const auto& [name, parameters] : published) {
    ModelConfig config = model_preset(name, "");
    EXPECT_EQ(config.parameters(), parameters) << name;
    EXPECT_NO_THROW(complete_and_validate(config, name)) << name;
  }
  EXPECT_THROW(model_preset("nothing", ""), Error);
}

TEST(ModelConfig, WeightsAreTheSameFunctionAfterTheirRecordIsRead) {
  for (const std::string& name : model_preset_names()) {
    ModelConfig config = model_preset(name, "");
    if (config.vocab_size == 0) config.vocab_size = 257;
    if (config.max_position_embeddings == 0) config.max_position_embeddings = 64;
    complete_and_validate(config, name);
    const ModelConfig saved = parse_model_config(model_config_json(config), name);
    EXPECT_NO_THROW(check_same_function(saved, config)) << name;
    const auto differs = [&](const char* key, auto change) {
      ModelConfig other = config;
      change(other);
      try {
        check_same_function(saved, other);
        ADD_FAILURE() << name << ": another " << key << " was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_config);
        EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
      }
    };
    differs("rms_norm_eps", [](ModelConfig& c) { c.rms_norm_eps *= 2; });
    differs("head_dim", [](ModelConfig& c) { c.head_dim *= 2; });
    if (config.is_gpt2()) continue;
    differs("rope_theta", [](ModelConfig& c) { c.rope_theta += 1; });
    differs("rope_scaling", [](ModelConfig& c) { c.rope_scaling = {.type = "linear", .factor = 3}; });
  }
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
