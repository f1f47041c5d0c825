// Training steps on random weights and tokens, timed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "train/config.h"
#include "train/pipeline_timing.h"

namespace baleen {

struct BenchResult {
  double tokens_per_s = 0;       // of all ranks, by the median step
  std::vector<double> step_ms;   // of the timed steps
  double model_tflops = 0;       // of one rank
  double mfu = 0;                // NaN where the device's peak is not known
  double comm_exposed_ms = 0;    // mean a step
  double host_ms = 0;            // median of what the host takes for a step: on a GPU, to enqueue it
  std::uint64_t host_waits = 0;  // how often it waited for a GPU inside the timed steps
  bool graph = false;            // whether the timed steps were replays of a graph, of so many nodes
  std::size_t graph_nodes = 0;
  std::string why_no_graph;                // on a GPU
  std::optional<PipelineTiming> pipeline;  // of the last step
  std::size_t memory_peak_bytes = 0, memory_planned_bytes = 0;
  std::map<std::string, std::size_t> allocations;
  std::string device;
};

// One untimed step, or three on a GPU that records its step meanwhile; then `steps`. Collective; `config` is resolved.
BenchResult bench_training(const Config& config, World& world, std::int64_t steps);

}  // namespace baleen
