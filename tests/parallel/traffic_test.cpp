// Bytes that a rank sends in a step, axis by axis, are those that docs/parallelism.md states.
#include <gtest/gtest.h>

#include "parallel/small_training.h"

namespace baleen {
namespace {

using namespace testing;

constexpr std::int64_t micro_batch = 2, width = 32,
                       layers = 8;  // more blocks a stage than the pool of an model without a pipeline has slots

ModelConfig model() {
  ModelConfig config = small_llama();
  config.hidden_size = width;
  config.head_dim = 8;
  config.num_hidden_layers = layers;
  config.tie_word_embeddings = false;
  return config;
}

// Of the second step, by rank and communicator.
std::vector<std::map<std::string, std::uint64_t>> sent_in_a_step(const Layout& layout, DType compute = DType::f32) {
  Training training;
  training.model = model();
  training.layout = layout;
  training.micro_batch = micro_batch;
  training.compute = compute;
  std::vector<std::map<std::string, std::uint64_t>> sent(static_cast<std::size_t>(layout.ranks()));
  run_ranks(layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    AdamWOptimizer optimizer({.seed = 3}, engine.device(), engine.units());
    const UnevenBatches batches;
    TrainingStep step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, 5, 0.1}, 1.0);
    step.run(1, false);
    engine.settle_weights();
    const auto before = axes.bytes_by_communicator();
    step.run(2, false);
    engine.settle_weights();
    auto& mine = sent[static_cast<std::size_t>(world.rank())];
    for (const auto& [name, bytes] : axes.bytes_by_communicator()) mine[name] = bytes - before.at(name);
  });
  return sent;
}

// Micro-batches of a rank, and its tokens in each.
std::uint64_t micro_batches(const Layout& layout) {
  return static_cast<std::uint64_t>(global_batch / (layout.data * layout.replicate * micro_batch));
}
std::uint64_t tokens(const Layout& layout) {
  return static_cast<std::uint64_t>(micro_batch * length / layout.context);
}

TEST(Traffic, TensorAxis) {
  for (const int tp : {2, 4}) {
    const Layout layout{.tensor = tp};
    const std::uint64_t others = static_cast<std::uint64_t>(tp - 1), part = tokens(layout) / static_cast<std::uint64_t>(tp) * width * 4;
    const std::uint64_t operations = (6 * layers + 2) + (4 * layers + 2), statistics = tokens(layout) * 3 * 4;
    for (const auto& rank : sent_in_a_step(layout))
      EXPECT_EQ(rank.at("tp"), micro_batches(layout) * others * (operations * part + statistics)) << tp;
  }
}

TEST(Traffic, ContextAxis) {
  for (const int cp : {2, 3}) {
    const Layout layout{.context = cp};
    const std::uint64_t keys = 2 * tokens(layout) * 2 * 8;  // Hkv · D
    for (const auto& rank : sent_in_a_step(layout)) {
      EXPECT_EQ(rank.at("cp"), micro_batches(layout) * layers * static_cast<std::uint64_t>(cp - 1) * 2 * keys * 4) << cp;
      EXPECT_EQ(rank.at("cp (gradients)"), micro_batches(layout) * layers * static_cast<std::uint64_t>(cp - 1) * keys * 4) << cp;
    }
  }
}

TEST(Traffic, PipelineAxis) {
  for (const Layout& layout : {Layout{.pipeline = 2}, Layout{.pipeline = 4, .schedule = "zero-bubble"},
                               Layout{.pipeline = 2, .schedule = "interleaved", .virtual_stages = 2}}) {
    const auto boundaries = static_cast<std::uint64_t>(layout.pipeline * layout.virtual_stages - 1);
    std::uint64_t sent = 0;
    for (const auto& rank : sent_in_a_step(layout)) sent += rank.at("pp activations and gradients");
    EXPECT_EQ(sent, micro_batches(layout) * boundaries * 2 * tokens(layout) * width * 4) << layout.parallel().text();
  }
}

// Under a pipeline stage 3 gathers a stage's weights once a step, not once a micro-batch and pass.
TEST(Traffic, GatheredWeightsServeAllMicroBatches) {
  const Layout layout{.data = 2, .zero = 3, .pipeline = 2};
  ASSERT_GT(micro_batches(layout), 1u);
  std::uint64_t gathered = 0, held = 0;
  for (const auto& rank : sent_in_a_step(layout)) gathered += rank.at("dp (weights)");
  for (const UnitDescription& unit : model_units(model())) held += UnitLayout(unit, 2).elements();
  EXPECT_EQ(gathered, held * 4);  // every rank sends its half of its stage
}

}  // namespace
}  // namespace baleen
