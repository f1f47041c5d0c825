#include "model/model_config.h"

#include <fmt/format.h>

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
  if (!(value > 0) || !std::isfinite(value)) reject(where, key, fmt::format("{} is not a positive number", value), "use a positive, finite number");
}

struct Preset {
  const char* name;
  ModelConfig config;
};

ModelConfig llama_sizes(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers, std::int64_t heads, std::int64_t kv_heads,
                        std::int64_t head_dim, std::int64_t vocabulary, std::int64_t positions, double theta, bool tied) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.vocab_size = vocabulary;
  config.max_position_embeddings = positions;
  config.rope_theta = theta;
  config.tie_word_embeddings = tied;
  return config;
}

std::vector<Preset> presets() {
  std::vector<Preset> all = {
      {"tiny", llama_sizes(256, 688, 4, 8, 4, 32, 0, 0, 10000, true)},
      {"llama-30m", llama_sizes(512, 1376, 8, 8, 4, 64, 0, 0, 10000, true)},
      {"llama-3.2-1b", llama_sizes(2048, 8192, 16, 32, 8, 64, 128256, 131072, 500000, true)},
      {"llama-3.2-3b", llama_sizes(3072, 8192, 28, 24, 8, 128, 128256, 131072, 500000, true)},
      {"llama-3.1-8b", llama_sizes(4096, 14336, 32, 32, 8, 128, 128256, 131072, 500000, false)},
  };
  for (Preset& preset : all) {
    const std::string_view name = preset.name;
    if (name.starts_with("llama-3.2")) preset.config.rope_scaling = {"llama3", 32, 1, 4, 8192};
    if (name.starts_with("llama-3.1")) preset.config.rope_scaling = {"llama3", 8, 1, 4, 8192};
  }
  return all;
}

}  // namespace

std::int64_t ModelConfig::matmul_parameters() const {
  const std::int64_t attention = hidden_size * head_dim * (2 * num_attention_heads + 2 * num_key_value_heads);
  const std::int64_t mlp = 3 * hidden_size * intermediate_size;
  return num_hidden_layers * (attention + mlp) + vocab_size * hidden_size;
}

std::int64_t ModelConfig::parameters() const {
  const std::int64_t norms = (2 * num_hidden_layers + 1) * hidden_size;
  return matmul_parameters() + norms + (tie_word_embeddings ? 0 : vocab_size * hidden_size);
}

double ModelConfig::flops_per_token(std::int64_t sequence_length) const {
  return 6.0 * static_cast<double>(matmul_parameters()) +
         6.0 * static_cast<double>(num_hidden_layers) * static_cast<double>(sequence_length) * static_cast<double>(num_attention_heads * head_dim);
}

void complete_and_validate(ModelConfig& config, const std::string& where) {
  if (config.architecture != "llama")
    reject(where, "architecture", fmt::format("'{}' is not supported", config.architecture), "supported architectures: llama");
  require_positive(where, "hidden_size", config.hidden_size);
  require_positive(where, "intermediate_size", config.intermediate_size);
  require_positive(where, "num_hidden_layers", config.num_hidden_layers);
  constexpr std::int64_t most_layers = 10'000;  // a larger number is a slip of the pen, and its descriptions alone would fill the memory
  if (config.num_hidden_layers > most_layers)
    reject(where, "num_hidden_layers", fmt::format("{} is too large", config.num_hidden_layers), fmt::format("use at most {}", most_layers));
  require_positive(where, "num_attention_heads", config.num_attention_heads);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0)
      reject(where, "num_attention_heads", fmt::format("{} heads do not divide hidden_size = {}", config.num_attention_heads, config.hidden_size),
             "use a divisor of hidden_size, or set head_dim");
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  require_positive(where, "num_key_value_heads", config.num_key_value_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reject(where, "num_key_value_heads", fmt::format("{} does not divide num_attention_heads = {}", config.num_key_value_heads, config.num_attention_heads),
           "use a divisor of num_attention_heads");
  require_positive(where, "head_dim", config.head_dim);
  if (config.head_dim % 2 != 0)
    reject(where, "head_dim", fmt::format("{} is odd, but rotary positions pair its elements", config.head_dim), "use an even head width");
  if (config.head_dim > 256) reject(where, "head_dim", fmt::format("{} is larger than 256", config.head_dim), "use more, narrower heads");
  require_positive(where, "vocab_size", config.vocab_size);
  require_positive(where, "max_position_embeddings", config.max_position_embeddings);
  require_finite_positive(where, "rope_theta", config.rope_theta);
  require_finite_positive(where, "rms_norm_eps", config.rms_norm_eps);
  if (!(config.initializer_range >= 0) || !std::isfinite(config.initializer_range))
    reject(where, "initializer_range", fmt::format("{} is not a standard deviation", config.initializer_range), "use a finite number ≥ 0");
  const RopeScaling& scaling = config.rope_scaling;
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

std::vector<std::string> model_preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

ModelConfig model_preset(std::string_view name, const std::string& where) {
  for (const Preset& preset : presets())
    if (name == preset.name) return preset.config;
  throw Error(ExitCode::bad_config, fmt::format("preset: no preset named '{}'", name), where,
              fmt::format("the presets are {}", fmt::join(model_preset_names(), ", ")));
}

}  // namespace baleen
