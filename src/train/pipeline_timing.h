// What a step lost to its pipeline's bubble, beside what its schedule would lose with the same times in the simulator.
#pragma once

#include <optional>
#include <vector>

#include "pipeline/simulate.h"
#include "train/engine.h"

namespace baleen {

struct PipelineTiming {
  // 1 - Σ computing / (stages · span from the first computation to the last), as measured and as simulated with `chunks` and `message_ms`.
  double bubble_fraction = 0, simulated_bubble_fraction = 0;
  double span_ms = 0, simulated_span_ms = 0;
  double message_ms = 0;           // the shortest wait for a message: of one that had been sent already, the time that it travels
  std::vector<ChunkCosts> chunks;  // in ms, means over the micro-batches; a backward pass in one piece is in backward_input
};

// Of the engine's last gradients(), which must have ended on the device; none without a pipeline. Collective over axis pp.
std::optional<PipelineTiming> time_pipeline(const Engine& engine);

}  // namespace baleen
