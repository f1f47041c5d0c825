// Trainings small enough to run in every layout.
#pragma once

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "comm/thread_ranks.h"
#include "model/family.h"
#include "ops/cross_entropy.h"
#include "train/parallel_axes.h"
#include "train/step.h"

namespace baleen::testing {

constexpr std::int64_t length = 24, global_batch = 12, vocabulary = 41;

inline ModelConfig small_llama() {
  ModelConfig config;
  config.hidden_size = 24;
  config.intermediate_size = 56;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.vocab_size = vocabulary;
  config.max_position_embeddings = length;
  config.tie_word_embeddings = true;
  return config;
}

// Five blocks, so that blocks are gathered, freed and gathered again; a head of its own.
inline ModelConfig untied_llama() {
  ModelConfig config = small_llama();
  config.num_hidden_layers = 5;
  config.tie_word_embeddings = false;
  return config;
}

inline ModelConfig small_gpt2() {
  ModelConfig config = small_llama();
  config.architecture = "gpt2";
  config.attention_bias = true;
  config.intermediate_size = 0;  // 4 · C
  config.num_hidden_layers = 3;
  config.num_key_value_heads = 0;
  config.head_dim = 0;
  complete_and_validate(config, "small_gpt2");
  return config;
}

inline ModelConfig small_qwen3() {
  ModelConfig config = small_llama();
  config.architecture = "qwen3";
  config.rms_norm_eps = 1e-6;
  complete_and_validate(config, "small_qwen3");
  return config;
}

// A sequence that can be learnt. The first third of the batch ignores most targets, so that ranks hold very different numbers of valid
// ones: with three ranks, rank 0 has hardly any.
class UnevenBatches : public BatchSource {
 public:
  void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
    const Philox philox(derive_key(7, step));
    for (std::int64_t s = first; s < first + count; ++s) {
      auto token = static_cast<std::int32_t>(philox(static_cast<std::uint64_t>(s))[0] % vocabulary);
      for (std::int64_t t = 0; t < length; ++t) {
        *inputs++ = token;
        token = (token * 5 + 3) % vocabulary;
        *targets++ = s < global_batch / 3 && t != 20 ? ops::ignore_index : token;
      }
    }
  }
  std::int64_t sequence_length() const override { return length; }
  std::int64_t global_batch_size() const override { return global_batch; }
};

using Parameters = std::vector<std::vector<float>>;  // by parameter, in the order of model_units

inline std::vector<std::string> parameter_names(const ModelConfig& model) {
  std::vector<std::string> names;
  for (const UnitDescription& unit : model_units(model))
    for (const ParameterDescription& parameter : unit.parameters) names.push_back(parameter.name);
  return names;
}

// What a rank's optimizer updates of `flat` (UnitStorage::master, updated_gradients, …), put into its place among whole parameters.
inline void put_updated(const ModelConfig& model, const UnitStorage& units, Tensor (UnitStorage::*flat)(int) const, Parameters& whole) {
  const std::vector<std::string> names = parameter_names(model);
  whole.resize(names.size());
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    std::vector<float>& values = whole[static_cast<std::size_t>(std::find(names.begin(), names.end(), parameter.name) - names.begin())];
    values.resize(static_cast<std::size_t>(parameter.global_elements()));
    const SliceRange range = units.part(id, units.slice(id.unit));
    const Tensor mine = units.of_updated((units.*flat)(id.unit), id, range);
    parameter.for_each_run(range, [&](std::size_t held, std::size_t global, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = held - range.begin + i;
        values[global + i] = mine.dtype() == DType::f32 ? mine.as<float>()[at] : to_float(mine.as<BFloat16>()[at]);
      }
    });
  }
}

struct Layout {
  int data = 1, zero = 0, replicate = 1, tensor = 1, context = 1, pipeline = 1;
  const char* schedule = "1f1b";
  int virtual_stages = 1;
  int ranks() const { return data * replicate * tensor * context * pipeline; }
  ParallelLayout parallel() const {
    return {.dp = data,
            .replicate = replicate,
            .zero = zero,
            .tp = tensor,
            .cp = context,
            .pp = pipeline,
            .schedule = schedule,
            .virtual_stages = virtual_stages};
  }
};

struct Training {
  ModelConfig model = small_llama();
  Layout layout = {};
  std::int64_t micro_batch = 0;  // 0: a rank's whole batch at once
  std::int64_t steps = 50;
  ReduceOp op = ReduceOp::sum;
  DType compute = DType::f32, state = DType::f32, gradient = DType::f32;
  bool offload = false;
  Recompute recompute = Recompute::none;
  bool sequence_parallel = true;
  std::int64_t head_chunks = 0;

  EngineOptions engine_options() const {
    return {.model = model,
            .micro_batch_size = micro_batch > 0 ? micro_batch : global_batch / (layout.data * layout.replicate),
            .sequence_length = length,
            .threads = 1,
            .reduction = op,
            .zero = layout.zero,
            .compute = compute,
            .state = state,
            .recompute = recompute,
            .offload = offload,
            .sequence_parallel = sequence_parallel,
            .schedule = parse_schedule(layout.schedule),
            .gradient = gradient,
            .head_chunks = head_chunks};
  }
};

struct Record {
  std::vector<double> losses, norms;
  Parameters first_gradients;  // after the first step's reduction
  Parameters last_weights;
};

inline Record train(const Training& training) {
  Record record;
  std::mutex mutex;
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    AdamWOptimizer optimizer({.seed = 3}, engine.device(), engine.units());
    const UnevenBatches batches;
    TrainingStep training_step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, training.steps, 0.1}, 1.0);
    for (std::int64_t step = 1; step <= training.steps; ++step) {
      const auto result = training_step.run(step, false);
      const std::lock_guard lock(mutex);
      if (step == 1) put_updated(training.model, engine.units(), &UnitStorage::updated_gradients, record.first_gradients);
      if (world.rank() != 0) continue;
      record.losses.push_back(result->loss);
      record.norms.push_back(result->grad_norm);
    }
    const std::lock_guard lock(mutex);
    put_updated(training.model, engine.units(), &UnitStorage::master, record.last_weights);
  });
  return record;
}

// The weights `names` as each rank of the layout holds them after five steps at a high rate, rank after rank; empty where it has none.
inline std::vector<std::vector<float>> copies_after_training(const Training& training, const std::vector<std::string>& names) {
  std::vector<std::vector<float>> copies(static_cast<std::size_t>(training.layout.ranks()));
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    AdamWOptimizer optimizer({.seed = 3}, engine.device(), engine.units());
    const UnevenBatches batches;
    TrainingStep step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-2, 0, 0, 5, 0.1}, 1.0);
    for (std::int64_t i = 1; i <= 5; ++i) step.run(i, false);
    std::vector<float>& values = copies[static_cast<std::size_t>(world.rank())];
    for (const std::string& name : names) {
      if (!engine.units().holds(name)) continue;
      const Tensor weight = engine.units().weight(engine.units().find(name));
      values.insert(values.end(), weight.as<float>(), weight.as<float>() + weight.elements());
    }
  });
  return copies;
}

inline double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

// docs/numerics.md, what layouts are equal to in fp32.
inline void expect_equivalent(const Record& layout, const Record& reference) {
  double whole = 0;
  for (const auto& gradient : reference.first_gradients) whole += norm(gradient) * norm(gradient);
  for (std::size_t p = 0; p < reference.first_gradients.size(); ++p) {
    std::vector<float> difference = layout.first_gradients[p];
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= reference.first_gradients[p][i];
    EXPECT_TRUE(norm(difference) <= 1e-5 * norm(reference.first_gradients[p]) + 1e-8 * std::sqrt(whole)) << "parameter " << p;
  }
  EXPECT_NEAR(layout.losses[0], reference.losses[0], 1e-6 * reference.losses[0]);
  EXPECT_NEAR(layout.norms[0], reference.norms[0], 1e-6 * reference.norms[0]);
  for (std::size_t step = 0; step < reference.losses.size(); ++step)
    EXPECT_NEAR(layout.losses[step], reference.losses[step], 1e-5) << "step " << step + 1;
}

inline void expect_same_bits(const Record& a, const Record& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.last_weights, b.last_weights);
}

}  // namespace baleen::testing
