#include <fmt/format.h>

#include <cmath>

#include "model/family.h"

namespace baleen {
namespace {

// As transformers' GPT2LMHeadModel saves them.
constexpr const char* embedding_table = "transformer.wte.weight";
constexpr const char* position_table = "transformer.wpe.weight";
constexpr const char* final_norm = "transformer.ln_f.";

std::string block_prefix(std::int64_t layer) {
  return fmt::format("transformer.h.{}.", layer);
}

// Every rank of axis tp holds the parameter; under sequence parallelism it sees but its tokens.
const TensorSplit of_tokens{.partial_gradient = TensorSplit::PartialGradient::sequence_parallel};

void describe_norm(UnitDescription& unit, const std::string& name, std::int64_t width) {
  unit.parameters.push_back({name + "weight", {width}, Initializer::ones, 0, true, of_tokens});
  unit.parameters.push_back({name + "bias", {width}, Initializer::zeros, 0, true, of_tokens});
}

UnitDescription describe_block(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t width = config.hidden_size, inner = config.intermediate_size;
  const double deviation = config.initializer_range;
  // 2L projections add to the residual stream: their initial deviation keeps its variance that of one (A. Radford et al., "Language models
  // are unsupervised multitask learners", 2019, section 2.3).
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  const std::string prefix = block_prefix(layer);
  UnitDescription unit{fmt::format("block {}", layer), {}};
  const auto projection = [&](const char* name, std::int64_t inputs, std::int64_t outputs, double standard_deviation,
                              const TensorSplit& weight, const TensorSplit& bias) {
    unit.parameters.push_back({fmt::format("{}{}.weight", prefix, name),
                               {inputs, outputs},
                               Initializer::normal,
                               static_cast<float>(standard_deviation),
                               true,
                               weight});
    unit.parameters.push_back({fmt::format("{}{}.bias", prefix, name), {outputs}, Initializer::zeros, 0, true, bias});
  };
  // Weights are [in, out]: column-parallel ones are sliced in dim 1, row-parallel ones in dim 0. Q, K and V are beside each other in
  // c_attn.
  const std::int64_t head = config.head_dim;
  describe_norm(unit, prefix + "ln_1.", width);
  projection("attn.c_attn", width, 3 * width, deviation, {.dim = 2, .block = head, .view = {width, 3, width}},
             {.dim = 1, .block = head, .view = {3, width}});
  projection("attn.c_proj", width, width, residual, {.dim = 0, .block = head}, {});
  describe_norm(unit, prefix + "ln_2.", width);
  projection("mlp.c_fc", width, inner, deviation, {.dim = 1}, {.dim = 0});
  projection("mlp.c_proj", inner, width, residual, {.dim = 0}, {});
  return unit;
}

std::vector<UnitDescription> units_of(const ModelConfig& config) {
  const auto table = [&](const char* name, std::int64_t rows, const TensorSplit& split) {
    return ParameterDescription{name, {rows, config.hidden_size}, Initializer::normal, static_cast<float>(config.initializer_range), true,
                                split};
  };
  std::vector<UnitDescription> units{
      {"embedding",
       {table(embedding_table, config.vocab_size, {.dim = 0}), table(position_table, config.max_position_embeddings, {})},
       UnitKind::embedding}};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) units.push_back(describe_block(config, layer));
  units.push_back({"head", {}, UnitKind::head});
  describe_norm(units.back(), final_norm, config.hidden_size);
  if (!config.tie_word_embeddings) units.back().parameters.push_back(table("lm_head.weight", config.vocab_size, {.dim = 0}));
  return units;
}

Embedding make_embedding(const UnitStorage& units) {
  return Embedding(units.find(embedding_table), units.find(position_table));
}

Norm make_norm(const ModelConfig& config, const UnitStorage& units, const std::string& name) {
  return {units.find(name + "weight"), units.find(name + "bias"), static_cast<float>(config.rms_norm_eps)};
}

TransformerBlock make_block(const ModelConfig& config, const UnitStorage& units, std::int64_t layer) {
  const std::string prefix = block_prefix(layer);
  const auto projection = [&](const char* name) {
    return Linear(units, {units.find(fmt::format("{}{}.weight", prefix, name))}, {units.find(fmt::format("{}{}.bias", prefix, name))},
                  WeightShape::input_output);
  };
  // What this rank holds of the heads.
  const std::int64_t heads = units.parameter(units.find(prefix + "attn.c_proj.weight")).held_shape()[0] / config.head_dim;
  const AttentionDimensions dimensions{heads, heads, config.head_dim};
  return {make_norm(config, units, prefix + "ln_1."),
          Attention(dimensions, projection("attn.c_attn"), projection("attn.c_proj"), /*rotary=*/false),
          make_norm(config, units, prefix + "ln_2."), Mlp(Activation::gelu, projection("mlp.c_fc"), projection("mlp.c_proj"))};
}

Norm make_final_norm(const ModelConfig& config, const UnitStorage& units) {
  return make_norm(config, units, final_norm);
}

}  // namespace

const Family& gpt2_family() {
  static constexpr Family family{units_of, make_embedding, make_block, make_final_norm, embedding_table};
  return family;
}

}  // namespace baleen
