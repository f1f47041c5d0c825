#include "model/family.h"

namespace baleen {

const Family& family_of(const ModelConfig& config) { return config.is_gpt2() ? gpt2_family() : llama_family(); }

std::vector<UnitDescription> model_units(const ModelConfig& config) { return family_of(config).units(config); }

}  // namespace baleen
