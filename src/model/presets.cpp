// Published models by name.
#include <fmt/format.h>

#include "base/error.h"
#include "model/model_config.h"

namespace baleen {
namespace {

struct Preset {
  const char* name;
  ModelConfig config;
};

struct Sizes {
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, positions;
};

ModelConfig sized(const char* architecture, const Sizes& sizes, bool tied) {
  ModelConfig config = default_model(architecture, "preset");
  config.hidden_size = sizes.hidden;
  config.intermediate_size = sizes.intermediate;
  config.num_hidden_layers = sizes.layers;
  config.num_attention_heads = sizes.heads;
  config.num_key_value_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  config.vocab_size = sizes.vocabulary;
  config.max_position_embeddings = sizes.positions;
  config.tie_word_embeddings = tied;
  return config;
}

ModelConfig with_theta(ModelConfig config, double theta, RopeScaling scaling = {}) {
  config.rope_theta = theta;
  config.rope_scaling = std::move(scaling);
  return config;
}

// Sizes as in the config.json of the published base models: meta-llama/Llama-3.2-1B, Llama-3.2-3B, Llama-3.1-8B, Qwen/Qwen2.5-*,
// Qwen/Qwen3-*, mistralai/Mistral-7B-v0.3 (the one without a sliding window), openai-community/gpt2.
std::vector<Preset> presets() {
  const RopeScaling by_32{"llama3", 32, 1, 4, 8192}, by_8{"llama3", 8, 1, 4, 8192};
  return {
      {"tiny", sized("llama", {256, 688, 4, 8, 4, 32, 0, 0}, true)},
      {"llama-30m", sized("llama", {512, 1376, 8, 8, 4, 64, 0, 0}, true)},
      {"llama-3.2-1b", with_theta(sized("llama", {2048, 8192, 16, 32, 8, 64, 128256, 131072}, true), 5e5, by_32)},
      {"llama-3.2-3b", with_theta(sized("llama", {3072, 8192, 28, 24, 8, 128, 128256, 131072}, true), 5e5, by_32)},
      {"llama-3.1-8b", with_theta(sized("llama", {4096, 14336, 32, 32, 8, 128, 128256, 131072}, false), 5e5, by_8)},
      {"qwen2.5-0.5b", with_theta(sized("qwen2", {896, 4864, 24, 14, 2, 64, 151936, 32768}, true), 1e6)},
      {"qwen2.5-1.5b", with_theta(sized("qwen2", {1536, 8960, 28, 12, 2, 128, 151936, 131072}, true), 1e6)},
      {"qwen2.5-3b", with_theta(sized("qwen2", {2048, 11008, 36, 16, 2, 128, 151936, 32768}, true), 1e6)},
      {"qwen2.5-7b", with_theta(sized("qwen2", {3584, 18944, 28, 28, 4, 128, 152064, 131072}, false), 1e6)},
      {"qwen3-0.6b", with_theta(sized("qwen3", {1024, 3072, 28, 16, 8, 128, 151936, 40960}, true), 1e6)},
      {"qwen3-1.7b", with_theta(sized("qwen3", {2048, 6144, 28, 16, 8, 128, 151936, 40960}, true), 1e6)},
      {"mistral-7b", with_theta(sized("mistral", {4096, 14336, 32, 32, 8, 128, 32768, 32768}, false), 1e6)},
      {"gpt2-124m", sized("gpt2", {768, 3072, 12, 12, 12, 64, 50257, 1024}, true)},
  };
}

}  // namespace

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
