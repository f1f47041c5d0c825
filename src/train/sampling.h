// One token from logits.
#pragma once

#include <cstdint>
#include <span>

namespace baleen {

// In the order in which they apply, as in transformers: temperature, the k most likely, the fewest most likely that together have p.
struct Sampling {
  double temperature = 1.0;  // 0: the most likely token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;        // (0, 1]; 1: all. A. Holtzman et al., "The curious case of neural text degeneration", 2020, section 3.1
};

// The id at the largest logit for temperature 0 (the first of equals), else one drawn from what the sampling leaves of softmax(logits /
// temperature) by `uniform` in [0, 1).
std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double uniform);

}  // namespace baleen
