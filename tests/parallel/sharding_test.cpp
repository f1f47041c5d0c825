// ZeRO and hybrid sharding give the bits, or the numbers, of plain data parallelism (docs/numerics.md), and hold and send what they
// promise.
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/small_training.h"
#include "sharding/replica_check.h"

namespace baleen {
namespace {

using namespace testing;

struct Case {
  std::string name;
  ModelConfig model;
  DType compute = DType::f32, state = DType::f32, gradient = DType::f32;
};

class Stages : public ::testing::TestWithParam<Case> {
 protected:
  Record train_with(const Layout& layout, std::int64_t micro_batch = 0) const {
    return train({.model = GetParam().model,
                  .layout = layout,
                  .micro_batch = micro_batch,
                  .compute = GetParam().compute,
                  .state = GetParam().state,
                  .gradient = GetParam().gradient});
  }
};
INSTANTIATE_TEST_SUITE_P(Models, Stages,
                         ::testing::Values(Case{"llama", small_llama()}, Case{"untied", untied_llama()}, Case{"gpt2", small_gpt2()},
                                           Case{"llama_bf16", small_llama(), DType::bf16}, Case{"gpt2_bf16", small_gpt2(), DType::bf16},
                                           Case{"untied_bf16_states", untied_llama(), DType::bf16, DType::bf16},
                                           Case{"gpt2_bf16_gradients", small_gpt2(), DType::bf16, DType::bf16, DType::bf16}),
                         [](const auto& test) { return test.param.name; });

TEST_P(Stages, HaveTheSameBitsWithoutAccumulation) {
  for (const int ranks : {2, 3, 4}) {
    const Record plain = train_with({ranks, 0});
    EXPECT_LT(plain.losses.back(), 0.9 * plain.losses.front());
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(zero));
      expect_same_bits(train_with({ranks, zero}), plain);
    }
  }
}

TEST_P(Stages, HaveTheSameBitsInPairsWithAccumulation) {
  // 12 sequences on 3 ranks, one at a time: four micro-steps.
  std::vector<Record> stages;
  for (const int zero : {0, 1, 2, 3}) stages.push_back(train_with({3, zero}, 1));
  expect_same_bits(stages[1], stages[0]);
  expect_same_bits(stages[3], stages[2]);
  if (GetParam().compute != DType::f32) return;
  expect_equivalent(stages[2], stages[0]);
  expect_equivalent(stages[0], train_with({}, 1));
}

TEST(Offload, AndRecomputeChangeNoBit) {
  for (const int zero : {0, 1, 2, 3})
    for (const DType compute : {DType::f32, DType::bf16}) {
      SCOPED_TRACE("stage " + std::to_string(zero) + ", " + std::string(dtype_name(compute)));
      Training training{
          .model = untied_llama(), .layout = {2, zero}, .micro_batch = 2, .steps = 8, .compute = compute, .gradient = compute};
      const Record usual = train(training);
      training.offload = true;
      expect_same_bits(train(training), usual);
      training.recompute = Recompute::full;
      expect_same_bits(train(training), usual);
      training.recompute = Recompute::selective;
      expect_same_bits(train(training), usual);
    }
}

// Losses of steps before which all memory of gradients becomes NaN; stages 0 and 1 keep the padding, where nothing is ever added.
std::vector<double> losses_of(const Training& training, bool poison) {
  std::vector<double> losses;
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    UnitStorage& units = engine.units();
    units.initialize_weights(11);
    AdamWOptimizer optimizer({.seed = 3}, engine.device(), units);
    const UnevenBatches batches;
    TrainingStep step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, 4, 0.1}, 1.0);
    for (std::int64_t i = 1; i <= 4; ++i) {
      for (const ParameterId id : poison ? units.parameters() : std::vector<ParameterId>{}) {
        const Tensor memory = units.stage() < 2 ? units.gradient(id) : units.pool_gradients(id.unit);
        std::memset(memory.data(), 0xff, memory.bytes());
      }
      const double loss = step.run(i, false)->loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

TEST(Gradients, OfTheStepBeforeAreNotRead) {
  for (const int zero : {0, 1, 2, 3})
    for (const DType gradient : {DType::f32, DType::bf16})
      for (const ModelConfig& model : {small_gpt2(), untied_llama()}) {
        const Training training{.model = model, .layout = {2, zero}, .micro_batch = 2, .compute = DType::bf16, .gradient = gradient};
        EXPECT_EQ(losses_of(training, true), losses_of(training, false))
            << zero << ' ' << dtype_name(gradient) << ' ' << model.architecture;
      }
}

// 288 tokens at once, or in chunks of 128, 128 and 32.
TEST(HeadChunks, GiveTheNumbersOfOne) {
  const Record one = train({.steps = 10});
  expect_equivalent(train({.steps = 10, .head_chunks = 3}), one);
  expect_equivalent(train({.layout = {.tensor = 2}, .steps = 10, .head_chunks = 3}), one);
  EXPECT_NE(train({.steps = 1, .head_chunks = 3}).first_gradients, one.first_gradients);
}

// Each addition to a gradient is rounded: losses stay near those of fp32 gradients, in every kind of layout.
TEST(HalfGradients, TrainAsWholeOnesDo) {
  Training training{.model = untied_llama(), .micro_batch = 3, .steps = 12, .compute = DType::bf16, .state = DType::bf16};
  const Record whole = train(training);
  training.gradient = DType::bf16;
  for (const Layout& layout : {Layout{}, Layout{.data = 2, .zero = 3}, Layout{.data = 2, .zero = 2, .replicate = 2}, Layout{.tensor = 2},
                               Layout{.context = 2}, Layout{.pipeline = 2}, Layout{.pipeline = 2, .schedule = "zero-bubble"}}) {
    SCOPED_TRACE(layout.parallel().text());
    training.layout = layout;
    const Record half = train(training);
    EXPECT_NE(half.first_gradients, whole.first_gradients);
    for (const std::vector<float>& gradient : half.first_gradients)
      for (const float value : gradient) ASSERT_EQ(value, to_float(to_bfloat16(value)));
    for (std::size_t i = 0; i < whole.losses.size(); ++i) EXPECT_NEAR(half.losses[i], whole.losses[i], 0.01 * whole.losses[i]) << i;
  }
}

TEST(HybridSharding, EqualsOneRankInEveryStage) {
  const Record one = train({.micro_batch = 1});
  for (const int zero : {0, 1, 2, 3})
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      SCOPED_TRACE("stage " + std::to_string(zero) + (op == ReduceOp::avg ? ", avg" : ", sum"));
      expect_equivalent(train({.layout = {2, zero, 2}, .micro_batch = 1, .op = op}), one);
      expect_equivalent(train({.layout = {2, zero, 2}, .op = op}), one);
    }
}

TEST(HybridSharding, ReplicasOfOneShardEach) {
  expect_equivalent(train({.layout = {1, 3, 3}, .micro_batch = 2}), train({.micro_batch = 1}));
}

// Bytes a rank holds for weights, gradients and states, without the pools.
std::size_t held_bytes(const Training& training, const char* only = nullptr) {
  std::size_t bytes = 0;
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    const Engine engine(training.engine_options(), axes.groups());
    if (world.rank() != 0) return;
    for (const auto& [name, size] : engine.device().allocations())
      if (only != nullptr ? name == only
                          : name == "weights" || name == "gradients" || name == "master weights" || name.starts_with("optimizer "))
        bytes += size;
  });
  return bytes;
}

// Wide enough that the padding of its units is small.
ModelConfig wide_model() {
  ModelConfig config = untied_llama();
  config.hidden_size = 256;
  config.intermediate_size = 512;
  config.head_dim = 64;
  config.vocab_size = 4096;
  return config;
}

TEST(ShardedMemory, IsWhatTheTablePromises) {
  const ModelConfig model = wide_model();
  double parameters = 0;
  for (const UnitDescription& unit : model_units(model))
    for (const ParameterDescription& parameter : unit.parameters) parameters += static_cast<double>(parameter.elements());
  for (const int n : {1, 2, 4, 8}) {
    const double per_shard = 1.0 / n;
    const double fp32[] = {16, 8 + 8 * per_shard, 4 + 12 * per_shard, 16 * per_shard};
    const double bf16[] = {18, 6 + 12 * per_shard, 2 + 16 * per_shard, 18 * per_shard};
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(n) + " ranks, stage " + std::to_string(zero));
      Training training{.model = model, .layout = {n, zero}, .micro_batch = 1};
      EXPECT_NEAR(static_cast<double>(held_bytes(training)) / parameters, fp32[zero], 0.02 * fp32[zero]);
      EXPECT_EQ(held_bytes(training, "gradients pool") > 0, zero >= 2);
      EXPECT_EQ(held_bytes(training, "weights pool") > 0, zero == 3);
      training.compute = DType::bf16;
      EXPECT_NEAR(static_cast<double>(held_bytes(training)) / parameters, bf16[zero], 0.02 * bf16[zero]);
      training.state = DType::bf16;
      const double states = 8 * (zero == 0 ? 1 : per_shard);  // bf16 saves the master apart, and half of each moment
      EXPECT_NEAR(static_cast<double>(held_bytes(training)) / parameters, bf16[zero] - states, 0.02 * bf16[zero]);
      training.gradient = DType::bf16;
      const double gradients = 2 * (zero < 2 ? 1 : per_shard);
      EXPECT_NEAR(static_cast<double>(held_bytes(training)) / parameters, bf16[zero] - states - gradients, 0.02 * bf16[zero]);
    }
  }
}

// Elements that a rank sends in one step, from the bytes counted by its communicators, without the few scalars that go beside.
std::pair<std::uint64_t, std::uint64_t> elements_sent(const Layout& layout, const ModelConfig& model) {
  std::pair<std::uint64_t, std::uint64_t> sent;  // gradients, weights
  run_ranks(layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, layout.parallel(), small_llama());
    const DataGroup group = axes.groups().data;
    const Training training{.model = model, .layout = layout};
    Engine engine(training.engine_options(), group);
    engine.units().initialize_weights(11);
    AdamWOptimizer optimizer({}, engine.device(), engine.units());
    const UnevenBatches batches;
    TrainingStep step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, 10, 0.1}, 1.0);
    step.run(1, false);
    engine.settle_weights();
    const std::uint64_t reduced = group.reduce.bytes_sent(), gathered = group.gather.bytes_sent();
    step.run(2, false);
    engine.settle_weights();
    // The squares of the gradient norm, one double, are summed over the same communicator: a flat sum that the ring of n slices sends once
    // or twice. They are what is left beyond whole elements of padding.
    if (world.rank() == 0)
      sent = {(group.reduce.bytes_sent() - reduced) / sizeof(float), (group.gather.bytes_sent() - gathered) / sizeof(float)};
  });
  return sent;
}

TEST(ShardedTraffic, ElementsSentAreThoseOfTheTable) {
  const ModelConfig model = untied_llama();
  for (const int n : {2, 3, 4}) {
    // Whole units as they lie in memory, padding included; what stage 3 need not gather again for backward: the embedding (backward does
    // not read it), the last two blocks and the head, still in the pool from forward.
    std::uint64_t all = 0, gathered_again = 0;
    const std::vector<UnitDescription> units = model_units(model);
    for (std::size_t u = 0; u < units.size(); ++u) {
      const std::uint64_t elements = UnitLayout(units[u], n).elements();
      all += elements;
      if (u >= 1 && u + 3 < units.size()) gathered_again += elements;
    }
    const auto share = [&](std::uint64_t elements) { return elements / static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(n - 1); };
    const std::uint64_t scalars = 2 * 2 * 2;  // at most: a double, sent twice
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(n) + " ranks, stage " + std::to_string(zero));
      const auto [gradients, weights] = elements_sent({n, zero}, model);
      const std::uint64_t reduced = zero == 0 ? 2 * share(all) : share(all);
      EXPECT_GE(gradients, reduced);
      EXPECT_LE(gradients, reduced + scalars);
      EXPECT_EQ(weights, zero == 0 ? 0 : zero < 3 ? share(all) : share(all) + share(gathered_again));
    }
  }
}

}  // namespace
}  // namespace baleen
