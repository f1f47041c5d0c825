// Which layers of a model a pipeline stage has.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace baleen {

struct StageLayers {
  std::int64_t first_layer = 0, layers = 0;
  bool embedding = true;  // the first stage
  bool head = true;       // the last: final norm, head and loss

  static StageLayers whole(const ModelConfig& config) { return {0, config.num_hidden_layers, true, true}; }
};

}  // namespace baleen
