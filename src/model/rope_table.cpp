#include "model/rope_table.h"

#include <cmath>
#include <numbers>

namespace baleen {

std::int64_t rope_columns(const ModelConfig& config) {
  return config.is_gpt2() ? 0 : config.head_dim / 2;
}

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  const std::int64_t half = rope_columns(config);
  std::vector<double> frequencies(static_cast<std::size_t>(half));
  const RopeScaling& scaling = config.rope_scaling;
  const double low_wavelength = static_cast<double>(scaling.original_max_position_embeddings) / scaling.low_freq_factor;
  const double high_wavelength = static_cast<double>(scaling.original_max_position_embeddings) / scaling.high_freq_factor;
  for (std::int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (scaling.type == "linear") frequency /= scaling.factor;
    if (scaling.type == "llama3") {
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      if (wavelength > low_wavelength) {
        frequency /= scaling.factor;
      } else if (wavelength >= high_wavelength) {
        const double turns = static_cast<double>(scaling.original_max_position_embeddings) / wavelength;
        const double kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = (1.0 - kept) * frequency / scaling.factor + kept * frequency;
      }
    }
    frequencies[static_cast<std::size_t>(i)] = frequency;
  }
  return frequencies;
}

RopeTable make_rope_table(const ModelConfig& config, std::int64_t positions) {
  const std::vector<double> frequencies = rope_inverse_frequencies(config);
  RopeTable table;
  table.cosines.reserve(static_cast<std::size_t>(positions) * frequencies.size());
  table.sines.reserve(table.cosines.capacity());
  for (std::int64_t position = 0; position < positions; ++position)
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosines.push_back(static_cast<float>(std::cos(angle)));
      table.sines.push_back(static_cast<float>(std::sin(angle)));
    }
  return table;
}

}  // namespace baleen
