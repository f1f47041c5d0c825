// Validation: the mean loss over held-out sequences, the same whatever the number of ranks.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "train/engine.h"

namespace baleen {

struct EvaluationResult {
  double loss = 0;          // mean over valid targets, nats a token
  std::int64_t tokens = 0;  // valid targets
};

// The first `sequences` samples of `data` (sequential order, global batch 1), divided over the engine's axis. Collective.
EvaluationResult evaluate(Engine& engine, const BatchSource& data, std::int64_t sequences);

}  // namespace baleen
