#include "train/bench.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"
#include "device/gpu.h"
#include "train/memory_fit.h"
#include "train/parallel_axes.h"
#include "train/peak.h"
#include "train/step.h"

namespace baleen {
namespace {

// Random tokens, the same for every layout.
class RandomBatches : public BatchSource {
 public:
  explicit RandomBatches(const Config& config)
      : length_(config.training.sequence_length),
        batch_(config.training.global_batch_size),
        vocabulary_(static_cast<std::uint32_t>(config.model.vocab_size)),
        philox_(derive_key(config.data.seed, "bench")) {}

  void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
    for (std::int64_t s = first; s < first + count; ++s)
      for (std::int64_t t = 0; t < length_; ++t) {
        const auto words =
            philox_(static_cast<std::uint64_t>(t), step * static_cast<std::uint64_t>(batch_) + static_cast<std::uint64_t>(s));
        *inputs++ = static_cast<std::int32_t>(words[0] % vocabulary_);
        *targets++ = static_cast<std::int32_t>(words[1] % vocabulary_);
      }
  }
  std::int64_t sequence_length() const override { return length_; }
  std::int64_t global_batch_size() const override { return batch_; }

 private:
  std::int64_t length_, batch_;
  std::uint32_t vocabulary_;
  Philox philox_;
};

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

BenchResult bench_training(const Config& config, World& world, std::int64_t steps) {
  const std::shared_ptr<Device> device = create_training_device(config, world);
  const ParallelAxes axes(world, layout_of(config.parallelism), config.model, device.get());
  Engine engine(check_memory(training_engine_options(config, device), axes.groups()), axes.groups());
  AdamWOptimizer optimizer(config.adamw, engine.device(), engine.units());
  engine.units().initialize_weights(config.training.seed);
  const RandomBatches batches(config);
  TrainingStep training_step(engine, optimizer, batches, config.schedule(), config.training.gradient_clip);

  BenchResult result;
  for (const auto& [name, bytes] : engine.device().allocations()) result.memory_planned_bytes += bytes;
  const std::int64_t untimed = engine.device().kind() == DeviceKind::gpu && training_step.why_no_graph().empty() ? 3 : 1;
  for (std::int64_t step = 1; step <= untimed; ++step) training_step.run(step, false);
  const std::uint64_t exposed = engine.exposed_nanoseconds();
  std::vector<double> host_ms;
  const auto take = [&](int leave) {
    while (training_step.pending() > leave) result.step_ms.push_back(1e3 * training_step.take().seconds);
  };
  for (std::int64_t step = untimed + 1; step <= untimed + steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t waits = host_waits(engine.device());
    training_step.enqueue(step, false);
    host_ms.push_back(milliseconds_since(begin));
    result.host_waits += host_waits(engine.device()) - waits;
    take(training_step.results_late());
  }
  take(0);
  result.pipeline = time_pipeline(engine);
  result.host_ms = median(host_ms);
  result.graph = training_step.replayed();
  result.graph_nodes = training_step.graph_nodes();
  result.why_no_graph = training_step.why_no_graph();
  const double median_s = median(result.step_ms) / 1e3;
  result.tokens_per_s = static_cast<double>(config.training.global_batch_size * config.training.sequence_length) / median_s;
  result.model_tflops = result.tokens_per_s * config.model.flops_per_token(config.training.sequence_length) / world.size() / 1e12;
  result.mfu = model_flops_utilisation(result.model_tflops, engine.device().description(), engine.units().options().compute);
  result.comm_exposed_ms = static_cast<double>(engine.exposed_nanoseconds() - exposed) / 1e6 / static_cast<double>(steps);
  result.memory_peak_bytes = engine.device().peak_bytes();
  result.allocations = engine.named_allocations();
  result.device = engine.device().description();
  return result;
}

}  // namespace baleen
