// What a model is: the architecture and its sizes, under config.json's own names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

// Position scaling of the rotary angles, as in config.json's rope_scaling.
struct RopeScaling {
  std::string type = "default";  // default | linear | llama3
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;      // llama3
  std::int64_t original_max_position_embeddings = 8192;  // llama3
};

struct ModelConfig {
  std::string architecture = "llama";        // config.json's model_type: llama | mistral | qwen2 | qwen3 | gpt2
  std::int64_t hidden_size = 0;              // C
  std::int64_t intermediate_size = 0;        // F; 0 in input of gpt2: 4 · C
  std::int64_t num_hidden_layers = 0;        // L
  std::int64_t num_attention_heads = 0;      // H
  std::int64_t num_key_value_heads = 0;      // Hkv; 0 in input: H
  std::int64_t head_dim = 0;                 // D; 0 in input: C / H
  std::int64_t vocab_size = 0;               // V; 0 in a training config: the tokenizer's
  std::int64_t max_position_embeddings = 0;  // 0 in a training config: the sequence length
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double rms_norm_eps = 1e-5;  // gpt2's layer_norm_epsilon
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // llama and qwen3: Q, K, V and output have biases. Always set for qwen2 (Q, K, V) and gpt2 (all)
  // The config.json that this was read from, as JSON text, or "": what is not interpreted here (ids of special tokens, …) stands in what is
  // written too. Its "baleen_generation_config" is the generation_config.json that lay beside it.
  std::string carried;

  bool is_gpt2() const { return architecture == "gpt2"; }
  bool has_qkv_bias() const { return attention_bias; }
  bool has_output_bias() const { return attention_bias && architecture != "qwen2"; }
  bool has_qk_norm() const { return architecture == "qwen3"; }

  // Parameters, and those among them that take part in matrix products (the head once, the embedding look-up not).
  std::int64_t parameters() const;
  std::int64_t matmul_parameters() const;
  // Model FLOPs of one training token in a sequence of T: 6 · matmul parameters + 6 · L · T · H · D (causal attention at half).
  double flops_per_token(std::int64_t sequence_length) const;
};

std::vector<std::string> architecture_names();
// What a model of this architecture has where nothing else is said, as transformers has it: sizes 0. Throws Error(bad_config) listing the
// names for an unknown one.
ModelConfig default_model(const std::string& architecture, const std::string& where);

// Fills the defaults that depend on other fields. Throws Error(bad_config) naming `where` and the key: sizes not positive, H % Hkv, an odd
// head width under rotary positions, C % H without head_dim, unknown rope scaling, biases or heads that the architecture does not have.
void complete_and_validate(ModelConfig& config, const std::string& where);

// Throws Error(bad_config) naming the key in which a model of `saved` would be another one in `current`: shapes alone do not tell the
// rotation of positions, the norms' epsilon or heads of another width, and weights that `current` lacks would be lost.
void check_same_function(const ModelConfig& saved, const ModelConfig& current);

// The named preset; throws Error(bad_config) listing the names. Vocabulary and length of "tiny" follow the data.
ModelConfig model_preset(std::string_view name, const std::string& where);
std::vector<std::string> model_preset_names();

// config.json as Hugging Face writes it, and as transformers reads it. Throws Error(bad_data) on a malformed file, Error(bad_config) on an
// architecture or feature that is not supported.
ModelConfig read_model_config(const std::filesystem::path& config_json);
ModelConfig parse_model_config(const std::string& text, const std::string& where);
std::string model_config_json(const ModelConfig& config);

// The two files of a Hugging Face folder: config.json, which says the weights are of `dtype` (config.json's own name, such as "bfloat16"),
// and generation_config.json, carried over or with the special tokens that config.json names.
struct ConfigFiles {
  std::string config, generation;
};
ConfigFiles config_files(const ModelConfig& config, const std::string& dtype);
// What config.json says of the precision of its weights ("bfloat16", …), or "".
std::string carried_dtype(const ModelConfig& config);
// The ids that end a generated text by generation_config.json or, where that says none, config.json. Empty where neither does.
std::vector<std::int32_t> end_tokens(const ModelConfig& config);

}  // namespace baleen
