#include "model/llama_parameters.h"

#include <fmt/format.h>

namespace baleen {

std::vector<UnitDescription> llama_units(const ModelConfig& config) {
  const auto deviation = static_cast<float>(config.initializer_range);
  const auto matrix = [&](std::string name, std::int64_t rows, std::int64_t columns) {
    return ParameterDescription{std::move(name), {rows, columns}, Initializer::normal, deviation};
  };
  const auto norm = [&](std::string name) { return ParameterDescription{std::move(name), {config.hidden_size}, Initializer::ones, 0}; };
  const std::int64_t width = config.hidden_size, query = config.num_attention_heads * config.head_dim,
                     kv = config.num_key_value_heads * config.head_dim;

  std::vector<UnitDescription> units;
  units.push_back({"embedding", {matrix("model.embed_tokens.weight", config.vocab_size, width)}});
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    units.push_back({fmt::format("block {}", layer),
                     {norm(prefix + "input_layernorm.weight"),
                      matrix(prefix + "self_attn.q_proj.weight", query, width),
                      matrix(prefix + "self_attn.k_proj.weight", kv, width),
                      matrix(prefix + "self_attn.v_proj.weight", kv, width),
                      matrix(prefix + "self_attn.o_proj.weight", width, query),
                      norm(prefix + "post_attention_layernorm.weight"),
                      matrix(prefix + "mlp.gate_proj.weight", config.intermediate_size, width),
                      matrix(prefix + "mlp.up_proj.weight", config.intermediate_size, width),
                      matrix(prefix + "mlp.down_proj.weight", width, config.intermediate_size)}});
  }
  UnitDescription head{"head", {norm("model.norm.weight")}};
  if (!config.tie_word_embeddings) head.parameters.push_back(matrix("lm_head.weight", config.vocab_size, width));
  units.push_back(std::move(head));
  return units;
}

}  // namespace baleen
