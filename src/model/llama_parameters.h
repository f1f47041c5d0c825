// A Llama's parameters under Hugging Face's names, in units: embedding, one per block, head.
#pragma once

#include <vector>

#include "model/model_config.h"
#include "sharding/parameter.h"

namespace baleen {

// Unit 0 is the embedding, unit 1 + l block l, the last the head (final norm, and lm_head unless it is tied).
std::vector<UnitDescription> llama_units(const ModelConfig& config);

}  // namespace baleen
