// config.json, read and written.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/model_config.h"

namespace baleen {
namespace {

using nlohmann::json;

constexpr std::size_t size_limit = 1 << 20;  // bytes; real ones have a few kilobytes
constexpr int depth_limit = 32;

// Nesting is bounded before the parser, which recurses into values, sees the text.
void check_depth(const std::string& text, const std::string& where) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > depth_limit) throw Error(ExitCode::bad_data, "nested too deeply for a config.json", where);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

// Typed access to the keys of one object; absent and null mean "keep the default".
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  void integer(const char* key, std::int64_t& value) const {
    if (const json* found = find(key)) {
      if (!found->is_number_integer()) wrong_type(key, "an integer");
      if (found->is_number_unsigned() && found->get<std::uint64_t>() > std::uint64_t{INT64_MAX}) wrong_type(key, "a 64-bit integer");
      value = found->get<std::int64_t>();
    }
  }
  void number(const char* key, double& value) const {
    if (const json* found = find(key)) {
      if (!found->is_number()) wrong_type(key, "a number");
      value = found->get<double>();
    }
  }
  void boolean(const char* key, bool& value) const {
    if (const json* found = find(key)) {
      if (!found->is_boolean()) wrong_type(key, "true or false");
      value = found->get<bool>();
    }
  }
  void string(const char* key, std::string& value) const {
    if (const json* found = find(key)) {
      if (!found->is_string()) wrong_type(key, "a string");
      value = found->get<std::string>();
    }
  }
  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void wrong_type(const char* key, const char* expected) const {
    throw Error(ExitCode::bad_data, fmt::format("{}: expected {}", key, expected), where_, "take config.json from the model's own folder again");
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ExitCode::bad_config, what + " is not supported", where_, "choose a model without it");
  }

 private:
  const json& object_;
  std::string where_;
};

void read_rope_scaling(const Reader& reader, const std::string& where, RopeScaling& scaling) {
  const json* found = reader.find("rope_scaling");
  if (found == nullptr) found = reader.find("rope_parameters");
  if (found == nullptr) return;
  if (!found->is_object()) reader.wrong_type("rope_scaling", "an object");
  const Reader inner(*found, where);
  inner.string("type", scaling.type);
  inner.string("rope_type", scaling.type);
  inner.number("factor", scaling.factor);
  inner.number("low_freq_factor", scaling.low_freq_factor);
  inner.number("high_freq_factor", scaling.high_freq_factor);
  inner.integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& config_json) {
  return parse_model_config(read_file(config_json, size_limit), config_json.string());
}

ModelConfig parse_model_config(const std::string& text, const std::string& where) {
  check_depth(text, where);
  json parsed;
  try {
    parsed = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(ExitCode::bad_data, fmt::format("not valid JSON: {}", error.what()), where, "take config.json from the model's own folder again");
  }
  if (!parsed.is_object()) throw Error(ExitCode::bad_data, "config.json holds no object", where);
  const Reader reader(parsed, where);
  ModelConfig config;
  reader.string("model_type", config.architecture);
  reader.integer("hidden_size", config.hidden_size);
  reader.integer("intermediate_size", config.intermediate_size);
  reader.integer("num_hidden_layers", config.num_hidden_layers);
  reader.integer("num_attention_heads", config.num_attention_heads);
  reader.integer("num_key_value_heads", config.num_key_value_heads);
  reader.integer("head_dim", config.head_dim);
  reader.integer("vocab_size", config.vocab_size);
  config.max_position_embeddings = 2048;
  reader.integer("max_position_embeddings", config.max_position_embeddings);
  reader.number("rope_theta", config.rope_theta);
  config.rms_norm_eps = 1e-6;  // transformers' default where the key is absent
  reader.number("rms_norm_eps", config.rms_norm_eps);
  reader.number("initializer_range", config.initializer_range);
  reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read_rope_scaling(reader, where, config.rope_scaling);
  bool bias = false;
  reader.boolean("attention_bias", bias);
  if (bias) reader.unsupported("attention_bias = true");
  reader.boolean("mlp_bias", bias);
  if (bias) reader.unsupported("mlp_bias = true");
  std::string activation = "silu";
  reader.string("hidden_act", activation);
  if (activation != "silu") reader.unsupported("hidden_act = \"" + activation + "\"");
  complete_and_validate(config, where);
  return config;
}

std::string model_config_json(const ModelConfig& config) {
  json out = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", config.architecture},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rope_theta", config.rope_theta},
      {"rms_norm_eps", config.rms_norm_eps},
      {"initializer_range", config.initializer_range},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"hidden_act", "silu"},
      {"torch_dtype", "float32"},
  };
  const RopeScaling& scaling = config.rope_scaling;
  out["rope_scaling"] = nullptr;
  if (scaling.type == "linear") out["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  if (scaling.type == "llama3")
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", scaling.factor},
                           {"low_freq_factor", scaling.low_freq_factor},
                           {"high_freq_factor", scaling.high_freq_factor},
                           {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  return out.dump(2) + "\n";
}

}  // namespace baleen
