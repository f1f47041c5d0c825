#include <fmt/format.h>

#include "model/family.h"

namespace baleen {
namespace {

std::string block_prefix(std::int64_t layer) {
  return fmt::format("model.layers.{}.", layer);
}

using PartialGradient = TensorSplit::PartialGradient;

// Every rank of axis tp holds the parameter; under sequence parallelism it sees but its tokens.
const TensorSplit of_tokens{.partial_gradient = PartialGradient::sequence_parallel};
// Of the heads that a rank holds, and yet one for all of them.
const TensorSplit of_heads{.partial_gradient = PartialGradient::always};

UnitDescription describe_block(const ModelConfig& config, std::int64_t layer) {
  const auto deviation = static_cast<float>(config.initializer_range);
  const std::string prefix = block_prefix(layer);
  const std::int64_t width = config.hidden_size, head = config.head_dim, query = config.num_attention_heads * head,
                     kv = config.num_key_value_heads * head, inner = config.intermediate_size;
  UnitDescription unit{fmt::format("block {}", layer), {}};
  const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns, const TensorSplit& split) {
    unit.parameters.push_back({prefix + name, {rows, columns}, Initializer::normal, deviation, true, split});
  };
  const auto vector = [&](const char* name, std::int64_t elements, Initializer initializer, const TensorSplit& split) {
    unit.parameters.push_back({prefix + name, {elements}, initializer, 0, true, split});
  };
  // Column-parallel: by query head, by KV head, by feature. Row-parallel: the products' inputs.
  const TensorSplit query_heads{.dim = 0, .block = head}, kv_heads{.dim = 0, .block = head, .copies = true}, features{.dim = 0};
  const TensorSplit head_inputs{.dim = 1, .block = head}, feature_inputs{.dim = 1};
  vector("input_layernorm.weight", width, Initializer::ones, of_tokens);
  matrix("self_attn.q_proj.weight", query, width, query_heads);
  matrix("self_attn.k_proj.weight", kv, width, kv_heads);
  matrix("self_attn.v_proj.weight", kv, width, kv_heads);
  if (config.has_qkv_bias()) {  // behind the weights, which are one product where they lie together
    vector("self_attn.q_proj.bias", query, Initializer::zeros, query_heads);
    vector("self_attn.k_proj.bias", kv, Initializer::zeros, kv_heads);
    vector("self_attn.v_proj.bias", kv, Initializer::zeros, kv_heads);
  }
  if (config.has_qk_norm()) {
    vector("self_attn.q_norm.weight", head, Initializer::ones, of_heads);
    vector("self_attn.k_norm.weight", head, Initializer::ones, of_heads);
  }
  matrix("self_attn.o_proj.weight", width, query, head_inputs);
  if (config.has_output_bias()) vector("self_attn.o_proj.bias", width, Initializer::zeros, {});
  vector("post_attention_layernorm.weight", width, Initializer::ones, of_tokens);
  matrix("mlp.gate_proj.weight", inner, width, features);
  matrix("mlp.up_proj.weight", inner, width, features);
  matrix("mlp.down_proj.weight", width, inner, feature_inputs);
  return unit;
}

constexpr const char* embedding_table = "model.embed_tokens.weight";
constexpr const char* final_norm_weight = "model.norm.weight";

std::vector<UnitDescription> units_of(const ModelConfig& config) {
  const auto deviation = static_cast<float>(config.initializer_range);
  const auto table = [&](const char* name) {
    return ParameterDescription{name, {config.vocab_size, config.hidden_size}, Initializer::normal, deviation, true, {.dim = 0}};
  };
  std::vector<UnitDescription> units{{"embedding", {table(embedding_table)}, UnitKind::embedding}};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) units.push_back(describe_block(config, layer));
  units.push_back({"head", {{final_norm_weight, {config.hidden_size}, Initializer::ones, 0, true, of_tokens}}, UnitKind::head});
  if (!config.tie_word_embeddings) units.back().parameters.push_back(table("lm_head.weight"));
  return units;
}

Embedding make_embedding(const UnitStorage& units) {
  return Embedding(units.find(embedding_table));
}

TransformerBlock make_block(const ModelConfig& config, const UnitStorage& units, std::int64_t layer) {
  const auto id = [&](const char* name) { return units.find(block_prefix(layer) + name); };
  const auto eps = static_cast<float>(config.rms_norm_eps);
  std::vector<ParameterId> qkv_biases, output_biases;
  if (config.has_qkv_bias()) qkv_biases = {id("self_attn.q_proj.bias"), id("self_attn.k_proj.bias"), id("self_attn.v_proj.bias")};
  if (config.has_output_bias()) output_biases = {id("self_attn.o_proj.bias")};
  std::optional<QkNorm> norm;
  if (config.has_qk_norm()) norm = QkNorm{id("self_attn.q_norm.weight"), id("self_attn.k_norm.weight"), eps};
  Linear qkv(units, {id("self_attn.q_proj.weight"), id("self_attn.k_proj.weight"), id("self_attn.v_proj.weight")}, qkv_biases);
  Linear output(units, {id("self_attn.o_proj.weight")}, output_biases);
  Linear gate_up(units, {id("mlp.gate_proj.weight"), id("mlp.up_proj.weight")});
  Linear down(units, {id("mlp.down_proj.weight")});
  // What this rank holds of the heads.
  const AttentionDimensions dimensions{units.parameter(id("self_attn.q_proj.weight")).held_shape()[0] / config.head_dim,
                                       units.parameter(id("self_attn.k_proj.weight")).held_shape()[0] / config.head_dim, config.head_dim};
  return {Norm(id("input_layernorm.weight"), eps), Attention(dimensions, std::move(qkv), std::move(output), /*rotary=*/true, norm),
          Norm(id("post_attention_layernorm.weight"), eps), Mlp(Activation::swiglu, std::move(gate_up), std::move(down))};
}

Norm make_final_norm(const ModelConfig& config, const UnitStorage& units) {
  return Norm(units.find(final_norm_weight), static_cast<float>(config.rms_norm_eps));
}

}  // namespace

const Family& llama_family() {
  static constexpr Family family{units_of, make_embedding, make_block, make_final_norm, embedding_table};
  return family;
}

}  // namespace baleen
