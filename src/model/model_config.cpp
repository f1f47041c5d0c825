#include "model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace baleen {
namespace {

[[noreturn]] void reject(const std::string& where, const std::string& key, const std::string& problem, const std::string& remedy) {
  throw Error(ExitCode::bad_config, fmt::format("{}: {}", key, problem), where, remedy);
}

void require_positive(const std::string& where, const char* key, std::int64_t value) {
  constexpr std::int64_t limit = std::int64_t{1} << 31;
  if (value <= 0) reject(where, key, fmt::format("{} is not a positive size", value), fmt::format("set {} to at least 1", key));
  if (value >= limit) reject(where, key, fmt::format("{} is too large", value), fmt::format("{} must be below {}", key, limit));
}

void require_finite_positive(const std::string& where, const char* key, double value) {
  if (!(value > 0) || !std::isfinite(value))
    reject(where, key, fmt::format("{} is not a positive number", value), "use a positive, finite number");
}

void check_rope_scaling(const RopeScaling& scaling, const std::string& where) {
  if (scaling.type != "default" && scaling.type != "linear" && scaling.type != "llama3")
    reject(where, "rope_scaling", fmt::format("type '{}' is not supported", scaling.type), "supported types: default, linear, llama3");
  if (scaling.type != "default") require_finite_positive(where, "rope_scaling.factor", scaling.factor);
  if (scaling.type == "llama3") {
    require_finite_positive(where, "rope_scaling.low_freq_factor", scaling.low_freq_factor);
    require_finite_positive(where, "rope_scaling.high_freq_factor", scaling.high_freq_factor);
    require_positive(where, "rope_scaling.original_max_position_embeddings", scaling.original_max_position_embeddings);
    if (scaling.high_freq_factor <= scaling.low_freq_factor)
      reject(where, "rope_scaling.high_freq_factor", "must be larger than low_freq_factor", "Llama 3 uses 1 and 4");
  }
}

// What one architecture has and another has not.
void check_architecture(const ModelConfig& config, const std::string& where) {
  const std::string& name = config.architecture;
  if (config.attention_bias && name == "mistral")
    reject(where, "attention_bias", "mistral has no biases",
           "leave it out, or set architecture = \"llama\", which is the same with biases");
  if (!config.attention_bias && (name == "qwen2" || name == "gpt2"))
    reject(where, "attention_bias", fmt::format("{} always has biases", name), "leave it out, or use another architecture, such as llama");
  if (!config.is_gpt2()) return;
  if (config.num_key_value_heads != config.num_attention_heads)
    reject(where, "num_key_value_heads", "gpt2 has as many key-value heads as heads", "leave it out");
  if (config.head_dim * config.num_attention_heads != config.hidden_size)
    reject(where, "head_dim", "gpt2's heads have the width hidden_size / heads", "leave it out");
  if (config.rope_scaling.type != "default") reject(where, "rope_scaling", "gpt2 has learned positions", "leave it out");
}

}  // namespace

std::vector<std::string> architecture_names() {
  return {"llama", "mistral", "qwen2", "qwen3", "gpt2"};
}

ModelConfig default_model(const std::string& architecture, const std::string& where) {
  const std::vector<std::string> known = architecture_names();
  if (std::find(known.begin(), known.end(), architecture) == known.end())
    reject(where, "architecture", fmt::format("'{}' is not supported", architecture),
           fmt::format("supported architectures: {}", fmt::join(known, ", ")));
  ModelConfig config;
  config.architecture = architecture;
  config.attention_bias = architecture == "qwen2" || architecture == "gpt2";
  config.tie_word_embeddings = architecture == "gpt2";
  if (architecture == "qwen2" || architecture == "qwen3") config.rms_norm_eps = 1e-6;
  return config;
}

std::int64_t ModelConfig::matmul_parameters() const {
  const std::int64_t attention = hidden_size * head_dim * (2 * num_attention_heads + 2 * num_key_value_heads);
  const std::int64_t mlp = (is_gpt2() ? 2 : 3) * hidden_size * intermediate_size;
  return num_hidden_layers * (attention + mlp) + vocab_size * hidden_size;
}

std::int64_t ModelConfig::parameters() const {
  std::int64_t block = 2 * hidden_size * (is_gpt2() ? 2 : 1), others = hidden_size * (is_gpt2() ? 2 : 1);  // the norms
  if (has_qkv_bias()) block += (num_attention_heads + 2 * num_key_value_heads) * head_dim;
  if (has_output_bias()) block += hidden_size;
  if (has_qk_norm()) block += 2 * head_dim;
  if (is_gpt2()) {
    block += intermediate_size + hidden_size;  // the MLP's biases
    others += max_position_embeddings * hidden_size;
  }
  if (!tie_word_embeddings) others += vocab_size * hidden_size;
  return matmul_parameters() + num_hidden_layers * block + others;
}

double ModelConfig::flops_per_token(std::int64_t sequence_length) const {
  return 6.0 * static_cast<double>(matmul_parameters()) + 6.0 * static_cast<double>(num_hidden_layers) *
                                                              static_cast<double>(sequence_length) *
                                                              static_cast<double>(num_attention_heads * head_dim);
}

void complete_and_validate(ModelConfig& config, const std::string& where) {
  default_model(config.architecture, where);  // is it known?
  require_positive(where, "hidden_size", config.hidden_size);
  if (config.is_gpt2() && config.intermediate_size == 0) config.intermediate_size = 4 * config.hidden_size;
  require_positive(where, "intermediate_size", config.intermediate_size);
  require_positive(where, "num_hidden_layers", config.num_hidden_layers);
  constexpr std::int64_t most_layers = 10'000;  // a larger number is a slip of the pen, and its descriptions alone would fill the memory
  if (config.num_hidden_layers > most_layers)
    reject(where, "num_hidden_layers", fmt::format("{} is too large", config.num_hidden_layers),
           fmt::format("use at most {}", most_layers));
  require_positive(where, "num_attention_heads", config.num_attention_heads);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0)
      reject(where, "num_attention_heads",
             fmt::format("{} heads do not divide hidden_size = {}", config.num_attention_heads, config.hidden_size),
             "use a divisor of hidden_size, or set head_dim");
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  require_positive(where, "num_key_value_heads", config.num_key_value_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reject(where, "num_key_value_heads",
           fmt::format("{} does not divide num_attention_heads = {}", config.num_key_value_heads, config.num_attention_heads),
           "use a divisor of num_attention_heads");
  require_positive(where, "head_dim", config.head_dim);
  check_architecture(config, where);
  if (!config.is_gpt2() && config.head_dim % 2 != 0)
    reject(where, "head_dim", fmt::format("{} is odd, but rotary positions pair its elements", config.head_dim), "use an even head width");
  if (config.head_dim > 256) reject(where, "head_dim", fmt::format("{} is larger than 256", config.head_dim), "use more, narrower heads");
  require_positive(where, "vocab_size", config.vocab_size);
  require_positive(where, "max_position_embeddings", config.max_position_embeddings);
  require_finite_positive(where, "rope_theta", config.rope_theta);
  require_finite_positive(where, "rms_norm_eps", config.rms_norm_eps);
  if (!(config.initializer_range >= 0) || !std::isfinite(config.initializer_range))
    reject(where, "initializer_range", fmt::format("{} is not a standard deviation", config.initializer_range), "use a finite number ≥ 0");
  check_rope_scaling(config.rope_scaling, where);
}

void check_same_function(const ModelConfig& saved, const ModelConfig& current) {
  const auto check = [](const char* key, const auto& before, const auto& now) {
    if (before == now) return;
    throw Error(ExitCode::bad_config,
                fmt::format("the checkpoint's model has {} = {}, and the config has {}: it would be another model", key, before, now),
                fmt::format("model.{}", key),
                "set it back; `baleen export` the checkpoint and begin a new run with it as [model] path to change it on purpose");
  };
  check("architecture", saved.architecture, current.architecture);
  check("hidden_size", saved.hidden_size, current.hidden_size);
  check("intermediate_size", saved.intermediate_size, current.intermediate_size);
  check("num_hidden_layers", saved.num_hidden_layers, current.num_hidden_layers);
  check("vocab_size", saved.vocab_size, current.vocab_size);
  check("tie_word_embeddings", saved.tie_word_embeddings, current.tie_word_embeddings);
  check("attention_bias", saved.attention_bias, current.attention_bias);
  check("num_attention_heads", saved.num_attention_heads, current.num_attention_heads);
  check("num_key_value_heads", saved.num_key_value_heads, current.num_key_value_heads);
  check("head_dim", saved.head_dim, current.head_dim);
  check("rms_norm_eps", saved.rms_norm_eps, current.rms_norm_eps);
  if (current.is_gpt2()) return check("max_position_embeddings", saved.max_position_embeddings, current.max_position_embeddings);  // learnt
  check("rope_theta", saved.rope_theta, current.rope_theta);
  const RopeScaling &before = saved.rope_scaling, &now = current.rope_scaling;
  check("rope_scaling.type", before.type, now.type);
  if (now.type == "default") return;
  check("rope_scaling.factor", before.factor, now.factor);
  if (now.type != "llama3") return;
  check("rope_scaling.low_freq_factor", before.low_freq_factor, now.low_freq_factor);
  check("rope_scaling.high_freq_factor", before.high_freq_factor, now.high_freq_factor);
  check("rope_scaling.original_max_position_embeddings", before.original_max_position_embeddings, now.original_max_position_embeddings);
}

}  // namespace baleen
