#include "model/family.h"

namespace baleen {

const Family& family_of(const ModelConfig& config) {
  return config.is_gpt2() ? gpt2_family() : llama_family();
}

std::vector<UnitDescription> model_units(const ModelConfig& config) {
  return family_of(config).units(config);
}

std::vector<UnitDescription> stage_units(const ModelConfig& config, const std::vector<StageLayers>& stages, const TensorRank& tensor) {
  const std::vector<UnitDescription> all = model_units(config);
  std::vector<UnitDescription> held;
  for (const StageLayers& stage : stages) {
    const std::size_t first = held.size();
    if (stage.embedding) held.push_back(all.front());
    for (std::int64_t layer = stage.first_layer; layer < stage.first_layer + stage.layers; ++layer)
      held.push_back(all[static_cast<std::size_t>(layer + 1)]);
    if (stage.head) held.push_back(all.back());
    if (stage.head && !stage.embedding && config.tie_word_embeddings) {
      held.push_back(all.front());
      held.back().copy = true;
    }
    for (std::size_t unit = first; unit < held.size(); ++unit) held[unit].chunk = static_cast<int>(&stage - stages.data());
  }
  slice_units(held, tensor);
  return held;
}

int stage_unit_count(const ModelConfig& config, const StageLayers& stage) {
  return static_cast<int>(stage_units(config, {stage}, {}).size());
}

}  // namespace baleen
