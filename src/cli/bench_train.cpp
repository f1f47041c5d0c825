// baleen bench train
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "train/bench.h"
#include "train/run_data.h"

namespace baleen::cli {
namespace {

nlohmann::ordered_json json_of(const std::optional<PipelineTiming>& pipeline) {
  if (!pipeline) return nullptr;
  auto chunks = nlohmann::ordered_json::array();
  for (const ChunkCosts& ms : pipeline->chunks)
    chunks.push_back({{"forward_ms", ms.forward}, {"backward_input_ms", ms.backward_input}, {"backward_weight_ms", ms.backward_weight}});
  return {{"bubble_fraction", pipeline->bubble_fraction},
          {"simulated_bubble_fraction", pipeline->simulated_bubble_fraction},
          {"span_ms", pipeline->span_ms},
          {"simulated_span_ms", pipeline->simulated_span_ms},
          {"message_ms", pipeline->message_ms},
          {"chunks", chunks}};
}

void print_json(const BenchResult& r) {
  const nlohmann::ordered_json object{{"tokens_per_s", r.tokens_per_s},
                                      {"step_ms", r.step_ms},
                                      {"model_tflops", r.model_tflops},
                                      {"mfu", r.mfu},
                                      {"memory_peak_bytes", r.memory_peak_bytes},
                                      {"memory_planned_bytes", r.memory_planned_bytes},
                                      {"allocations", r.allocations},
                                      {"comm_exposed_ms", r.comm_exposed_ms},
                                      {"host_ms", r.host_ms},
                                      {"host_waits", r.host_waits},
                                      {"graph", r.graph},
                                      {"graph_nodes", r.graph_nodes},
                                      {"why_no_graph", r.why_no_graph},
                                      {"pipeline", json_of(r.pipeline)},
                                      {"device", r.device}};
  fmt::print("{}\n", dump_json(object));
}

void print_table(const BenchResult& r) {
  fmt::print("{:.0f} tokens/s, {:.4f} model TFLOP/s a rank, {:.2f} ms of communication exposed a step, on {}\n", r.tokens_per_s,
             r.model_tflops, r.comm_exposed_ms, r.device);
  if (std::isfinite(r.mfu)) fmt::print("MFU {:.1f} %\n", 100 * r.mfu);
  if (r.pipeline)
    fmt::print("bubble {:.4f} of {:.2f} ms; simulated with the measured times of its passes: {:.4f} of {:.2f} ms\n",
               r.pipeline->bubble_fraction, r.pipeline->span_ms, r.pipeline->simulated_bubble_fraction, r.pipeline->simulated_span_ms);
  fmt::print("the host took {:.2f} ms of a step and waited {} times for a GPU inside the steps\n", r.host_ms, r.host_waits);
  if (r.graph)
    fmt::print("each step was one graph of {} nodes\n", r.graph_nodes);
  else if (!r.why_no_graph.empty())
    fmt::print("each step was enqueued anew, not as a graph: {}\n", r.why_no_graph);
  fmt::print("memory of a rank: {} bytes at the peak, {} planned\n", r.memory_peak_bytes, r.memory_planned_bytes);
  for (const auto& [name, bytes] : r.allocations) fmt::print("  {:>14}  {}\n", bytes, name);
}

}  // namespace

int run(const BenchTrainArguments& arguments, const std::vector<std::string>& command_line) {
  const RankEnvironment environment = detect_ranks();
  Config config = read_config(arguments.config, arguments.overrides);
  const int ranks = rank_count(environment, arguments.ranks, static_cast<int>(config.ranks_named()));
  config.training.steps = 0;  // no data are needed
  resolve_run(config, ranks, other_launcher(environment));
  RankedCommand command{ranks,
                        static_cast<int>(config.training.threads),
                        config.comm.timeout_s,
                        /*graceful_stop=*/false,
                        config.comm.backend,
                        config.training.device == "gpu"};
  command.peer_copies = config.comm.peer_copies;
  return run_on_ranks(environment, command, command_line, [&](World& world) {
    const BenchResult result = bench_training(config, world, arguments.steps);
    if (world.rank() == 0) arguments.json ? print_json(result) : print_table(result);
    return 0;
  });
}

}  // namespace baleen::cli
