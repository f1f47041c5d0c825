// The rotary angles of a model: cos and sin of position · frequency, with config.json's rope_scaling applied.
#pragma once

#include <vector>

#include "model/model_config.h"

namespace baleen {

// Angles a position: D/2, or 0 where positions are learned (GPT-2).
std::int64_t rope_columns(const ModelConfig& config);

struct RopeTable {
  std::vector<float> cosines, sines;  // [positions, rope_columns] each
};

// Inverse frequencies [D/2] in fp64: θ^(-2i/D); "linear" divides all by the factor; "llama3" divides long wavelengths, keeps short ones and
// interpolates between (as published with Llama 3.1: https://github.com/meta-llama/llama-models, and in transformers).
std::vector<double> rope_inverse_frequencies(const ModelConfig& config);
RopeTable make_rope_table(const ModelConfig& config, std::int64_t positions);

}  // namespace baleen
