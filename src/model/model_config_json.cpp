// config.json, read and written.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/model_config.h"

namespace baleen {
namespace {

using nlohmann::json;

constexpr std::size_t size_limit = 1 << 20;  // bytes; real ones have a few kilobytes
constexpr JsonLimits json_limits{.depth = 32, .values = 1 << 20};
constexpr const char* broken_remedy = "take config.json from the model's own folder again";

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
  void require(const char* key) const {
    if (find(key) == nullptr) throw Error(ExitCode::bad_data, fmt::format("{} is missing", key), where_, broken_remedy);
  }
  bool has(const char* key) const { return object_.contains(key); }
  [[noreturn]] void wrong_type(const char* key, const char* expected) const {
    throw Error(ExitCode::bad_data, fmt::format("{}: expected {}", key, expected), where_, broken_remedy);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ExitCode::bad_config, what + " is not supported", where_, "choose a model without it");
  }

 private:
  const json& object_;
  std::string where_;
};

void read_rope_scaling(const Reader& reader, const std::string& where, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  const json* found = reader.find("rope_scaling");
  if (found == nullptr) found = reader.find("rope_parameters");
  if (found == nullptr) return;
  if (!found->is_object()) reader.wrong_type("rope_scaling", "an object");
  const Reader inner(*found, where + ": rope_scaling");
  inner.number("rope_theta", config.rope_theta);  // where transformers 5 keeps it
  inner.string("type", scaling.type);
  inner.string("rope_type", scaling.type);
  if (scaling.type == "linear" || scaling.type == "llama3") inner.require("factor");
  inner.number("factor", scaling.factor);
  if (scaling.type != "llama3") return;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) inner.require(key);
  inner.number("low_freq_factor", scaling.low_freq_factor);
  inner.number("high_freq_factor", scaling.high_freq_factor);
  // As transformers 5 has it: the key outside counts before the one inside.
  scaling.original_max_position_embeddings = config.max_position_embeddings;
  inner.integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
  reader.integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
}

// A window that bounds how far back a token sees would change the result without a word.
void refuse_sliding_window(const Reader& reader, const std::string& architecture, std::int64_t positions) {
  bool used = false;
  reader.boolean("use_sliding_window", used);
  if (used) reader.unsupported("use_sliding_window = true");
  if (architecture == "mistral" && reader.find("sliding_window") != nullptr) reader.unsupported("a sliding_window that is not null");
  constexpr std::int64_t usual_window = 4096;  // what transformers takes where mistral's config.json says nothing
  if (architecture == "mistral" && !reader.has("sliding_window") && positions > usual_window)
    reader.unsupported("mistral without \"sliding_window\": null, which means a window of 4096,");
  const json* types = reader.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) reader.wrong_type("layer_types", "a list");
  for (const json& type : *types)
    if (type != "full_attention") reader.unsupported("layer_types with " + dump_json(type));
}

// What transformers takes where the keys are absent.
struct AbsentKeys {
  std::int64_t kv_heads, positions;  // kv_heads 0: as many as heads
};

AbsentKeys absent_keys(const std::string& architecture) {
  if (architecture == "mistral") return {8, 131072};
  if (architecture == "qwen2" || architecture == "qwen3") return {32, 32768};
  return {0, 2048};
}

void read_llama(const Reader& reader, const std::string& where, ModelConfig& config) {
  reader.integer("hidden_size", config.hidden_size);
  reader.integer("intermediate_size", config.intermediate_size);
  reader.integer("num_hidden_layers", config.num_hidden_layers);
  reader.integer("num_attention_heads", config.num_attention_heads);
  const AbsentKeys absent = absent_keys(config.architecture);
  if (!reader.has("num_key_value_heads")) config.num_key_value_heads = absent.kv_heads;  // null: as many as heads
  reader.integer("num_key_value_heads", config.num_key_value_heads);
  if (config.has_qk_norm()) config.head_dim = 128;  // as transformers has it where the key is absent: Qwen3's width is not C / H
  reader.integer("head_dim", config.head_dim);
  config.max_position_embeddings = absent.positions;
  reader.integer("max_position_embeddings", config.max_position_embeddings);
  reader.number("rope_theta", config.rope_theta);
  config.rms_norm_eps = 1e-6;  // transformers' default where the key is absent
  reader.number("rms_norm_eps", config.rms_norm_eps);
  read_rope_scaling(reader, where, config);
  reader.boolean("attention_bias", config.attention_bias);
  bool bias = false;
  reader.boolean("mlp_bias", bias);
  if (bias) reader.unsupported("mlp_bias = true");
  std::string activation = "silu";
  reader.string("hidden_act", activation);
  if (activation != "silu") reader.unsupported("hidden_act = \"" + activation + "\"");
  refuse_sliding_window(reader, config.architecture, config.max_position_embeddings);
}

void read_gpt2(const Reader& reader, ModelConfig& config) {
  reader.integer("n_embd", config.hidden_size);
  reader.integer("n_inner", config.intermediate_size);
  reader.integer("n_layer", config.num_hidden_layers);
  reader.integer("n_head", config.num_attention_heads);
  config.max_position_embeddings = 1024;
  reader.integer("n_positions", config.max_position_embeddings);
  reader.number("layer_norm_epsilon", config.rms_norm_eps);
  std::string activation = "gelu_new";
  reader.string("activation_function", activation);
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") reader.unsupported("activation_function = \"" + activation + "\"");
  bool flag = true;
  reader.boolean("scale_attn_weights", flag);
  if (!flag) reader.unsupported("scale_attn_weights = false");
  flag = false;
  reader.boolean("scale_attn_by_inverse_layer_idx", flag);
  if (flag) reader.unsupported("scale_attn_by_inverse_layer_idx = true");
  reader.boolean("add_cross_attention", flag);
  if (flag) reader.unsupported("add_cross_attention = true");
}

json gpt2_json(const ModelConfig& config) {
  return {
      {"architectures", {"GPT2LMHeadModel"}},      {"n_embd", config.hidden_size},         {"n_inner", config.intermediate_size},
      {"n_layer", config.num_hidden_layers},       {"n_head", config.num_attention_heads}, {"n_positions", config.max_position_embeddings},
      {"layer_norm_epsilon", config.rms_norm_eps}, {"activation_function", "gelu_new"},
  };
}

json llama_json(const ModelConfig& config) {
  const std::string& name = config.architecture;
  const char* model_class = name == "mistral" ? "MistralForCausalLM"
                            : name == "qwen2" ? "Qwen2ForCausalLM"
                            : name == "qwen3" ? "Qwen3ForCausalLM"
                                              : "LlamaForCausalLM";
  json out = {
      {"architectures", {model_class}},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rope_theta", config.rope_theta},
      {"rms_norm_eps", config.rms_norm_eps},
      {"hidden_act", "silu"},
  };
  if (name == "llama") out["mlp_bias"] = false;
  if (name == "llama" || name == "qwen3") out["attention_bias"] = config.attention_bias;
  if (name == "mistral") out["sliding_window"] = nullptr;
  if (name == "qwen2" || name == "qwen3") out["use_sliding_window"] = false;
  const RopeScaling& scaling = config.rope_scaling;
  out["rope_scaling"] = nullptr;
  if (scaling.type == "linear") out["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  if (scaling.type == "llama3")
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", scaling.factor},
                           {"low_freq_factor", scaling.low_freq_factor},
                           {"high_freq_factor", scaling.high_freq_factor},
                           {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  return out;
}

constexpr const char* generation_key = "baleen_generation_config";

json carried_object(const ModelConfig& config) {
  return config.carried.empty() ? json::object() : parse_json(config.carried, "config.json", json_limits);
}

// What is written in another form, or no longer true of the weights.
void drop_outdated(json& carried) {
  for (const char* key : {"rope_parameters", "original_max_position_embeddings", "layer_types", "dtype", "torch_dtype"}) carried.erase(key);
}

void append_ids(const json& value, std::vector<std::int32_t>& ids) {
  if (value.is_array())
    for (const json& id : value) append_ids(id, ids);
  else if (value.is_number_integer() && value >= 0 && value <= INT32_MAX)
    ids.push_back(value.get<std::int32_t>());
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& config_json) {
  ModelConfig config = parse_model_config(read_file(config_json, size_limit), config_json.string());
  const std::filesystem::path generation = config_json.parent_path() / "generation_config.json";
  std::error_code ignored;
  if (config_json.filename() != "config.json" || !std::filesystem::exists(generation, ignored)) return config;
  json carried = carried_object(config);
  carried[generation_key] = parse_json(read_file(generation, size_limit), generation.string(), json_limits, broken_remedy);
  config.carried = dump_json(carried);
  return config;
}

ModelConfig parse_model_config(const std::string& text, const std::string& where) {
  const json parsed = parse_json(text, where, json_limits, broken_remedy);
  const Reader reader(parsed, where);
  std::string architecture;
  reader.require("model_type");
  reader.string("model_type", architecture);
  ModelConfig config = default_model(architecture, where);
  if (reader.find("quantization_config") != nullptr) reader.unsupported("quantization_config");
  config.carried = dump_json(parsed);
  reader.integer("vocab_size", config.vocab_size);
  reader.number("initializer_range", config.initializer_range);
  reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  if (config.is_gpt2())
    read_gpt2(reader, config);
  else
    read_llama(reader, where, config);
  complete_and_validate(config, where);
  return config;
}

std::string model_config_json(const ModelConfig& config) {
  json out = carried_object(config);
  const std::string dtype = carried_dtype(config);
  drop_outdated(out);
  out.update(config.is_gpt2() ? gpt2_json(config) : llama_json(config));
  out["model_type"] = config.architecture;
  out["vocab_size"] = config.vocab_size;
  out["initializer_range"] = config.initializer_range;
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  out["torch_dtype"] = dtype.empty() ? "float32" : dtype;
  return dump_json(out, 2) + "\n";
}

std::string carried_dtype(const ModelConfig& config) {
  const json carried = carried_object(config);
  for (const char* key : {"dtype", "torch_dtype"})
    if (const auto found = carried.find(key); found != carried.end() && found->is_string()) return found->get<std::string>();
  return "";
}

ConfigFiles config_files(const ModelConfig& config, const std::string& dtype) {
  json whole = parse_json(model_config_json(config), "config.json", json_limits);
  whole["torch_dtype"] = dtype;
  json generation = json::object();
  if (const auto found = whole.find(generation_key); found != whole.end()) {
    generation = *found;
    whole.erase(generation_key);
  } else {
    generation["_from_model_config"] = true;
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (whole.contains(key) && !whole[key].is_null()) generation[key] = whole[key];
  }
  return {dump_json(whole, 2) + "\n", dump_json(generation, 2) + "\n"};
}

std::vector<std::int32_t> end_tokens(const ModelConfig& config) {
  const json carried = carried_object(config);
  std::vector<std::int32_t> ids;
  if (const auto found = carried.find(generation_key); found != carried.end() && found->is_object() && found->contains("eos_token_id"))
    append_ids((*found)["eos_token_id"], ids);
  if (ids.empty() && carried.contains("eos_token_id")) append_ids(carried["eos_token_id"], ids);
  return ids;
}

}  // namespace baleen
