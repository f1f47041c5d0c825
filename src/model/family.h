// What differs between families of models: the parameters under Hugging Face's names, and the layers they make. A stage is built from
// this; nothing above model/ knows a family.
#pragma once

#include <vector>

#include "layers/embedding.h"
#include "layers/transformer_block.h"
#include "model/model_config.h"
#include "model/stage_layers.h"
#include "model/tensor_slices.h"

namespace baleen {

struct Family {
  // Unit 0 is the embedding, unit 1 + l block l, the last the head (final norm, and the head's weight unless it is tied).
  std::vector<UnitDescription> (*units)(const ModelConfig& config);
  // The layers over these units.
  Embedding (*embedding)(const UnitStorage& units);
  TransformerBlock (*block)(const ModelConfig& config, const UnitStorage& units, std::int64_t layer);
  Norm (*final_norm)(const ModelConfig& config, const UnitStorage& units);
  // The embedding table where the head is tied to it.
  const char* embedding_table;
};

// `config` is complete and valid.
const Family& family_of(const ModelConfig& config);
// Of the whole model on one rank.
std::vector<UnitDescription> model_units(const ModelConfig& config);
// Of the stages that a rank has, one behind the other: of each the embedding, its blocks, the head, and behind it a copy of the embedding
// where the head is tied to it and the embedding belongs to another stage.
std::vector<UnitDescription> stage_units(const ModelConfig& config, const std::vector<StageLayers>& stages, const TensorRank& tensor);
// Of one stage among them.
int stage_unit_count(const ModelConfig& config, const StageLayers& stage);

// Llama and its relatives: Mistral (the same), Qwen2 (biases of Q, K and V), Qwen3 (QK-norm).
const Family& llama_family();
// GPT-2: learned positions, LayerNorm, biases everywhere, weights stored [in, out], residual projections' initial deviation / sqrt(2L).
const Family& gpt2_family();

}  // namespace baleen
