// Context and pipeline parallelism, and their products with the other axes, equal one rank over many steps; and the faults of
// docs/known-faults.md do not appear.
#include <gtest/gtest.h>

#include "parallel/small_training.h"

namespace baleen {
namespace {

using namespace testing;

// Two sequences a micro-batch: a rank of plain training takes six, so that every schedule has enough of them.
Training on(Layout layout, ModelConfig model = small_llama(), std::int64_t steps = 10) {
  Training training;
  training.model = std::move(model);
  training.layout = layout;
  training.micro_batch = 2;
  training.steps = steps;
  return training;
}

Record reference(const ModelConfig& model = small_llama(), std::int64_t steps = 10) {
  return train(on({}, model, steps));
}

ModelConfig deep_llama(bool tied) {
  ModelConfig config = small_llama();
  config.num_hidden_layers = 4;
  config.tie_word_embeddings = tied;
  return config;
}

TEST(ContextParallel, TwoToFourRanksOverManySteps) {  // fault 5: loss scale and attention gradients
  const Record one = reference(small_llama(), 30);
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    expect_equivalent(train(on({.context = ranks}, small_llama(), 30)), one);
  }
}

TEST(ContextParallel, AveragingEqualsSumming) {
  Training training = on({.data = 2, .context = 2});
  training.op = ReduceOp::avg;
  expect_equivalent(train(training), reference());
}

TEST(ContextParallel, StatesAreShardedOverItToo) {
  const Record one = reference();
  std::vector<Record> stages;
  for (const int zero : {0, 1, 2, 3}) stages.push_back(train(on({.data = 2, .zero = zero, .context = 2})));
  for (const Record& stage : stages) expect_equivalent(stage, one);
  expect_same_bits(stages[0], stages[1]);
  expect_same_bits(stages[2], stages[3]);
}

// Fault 3: another gradient scale under a pipeline; a sum over micro-batches that became an average. Fault 4: targets to ignore fall
// unevenly on the micro-batches (UnevenBatches).
TEST(PipelineParallel, EverySchedule) {
  const ModelConfig model = deep_llama(false);
  const Record one = reference(model);
  for (const Layout& layout : {Layout{.pipeline = 2, .schedule = "gpipe"}, Layout{.pipeline = 4},
                               Layout{.pipeline = 2, .schedule = "interleaved", .virtual_stages = 2},
                               Layout{.pipeline = 4, .schedule = "zero-bubble"}, Layout{.pipeline = 3}}) {
    SCOPED_TRACE(layout.parallel().text());
    expect_equivalent(train(on(layout, model)), one);
  }
}

// Without other axes a pipeline only moves the work: the same bits as one rank's, tied embeddings apart, whose two parts are summed at the
// end.
TEST(PipelineParallel, HasTheBitsOfOneRank) {
  const ModelConfig model = deep_llama(false);
  const Record one = reference(model), four = train(on({.pipeline = 4}, model)),
               halves = train(on({.pipeline = 4, .schedule = "zero-bubble"}, model));
  EXPECT_EQ(four.losses[0], one.losses[0]);
  EXPECT_EQ(four.first_gradients, one.first_gradients);
  EXPECT_EQ(four.losses, halves.losses);
  EXPECT_EQ(four.last_weights, halves.last_weights);
}

// Fault 6: tied embeddings under pipeline and sharded optimizer.
TEST(PipelineParallel, TiedEmbeddingsInEveryStageOfZero) {
  for (const ModelConfig& model : {deep_llama(true), small_gpt2()}) {
    SCOPED_TRACE(model.architecture);
    const Record one = reference(model);
    std::vector<Record> stages;
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(zero);
      stages.push_back(train(on({.data = 2, .zero = zero, .pipeline = 2}, model)));
      expect_equivalent(stages.back(), one);
    }
    expect_same_bits(stages[0], stages[1]);
    expect_same_bits(stages[2], stages[3]);
  }
}

TEST(PipelineParallel, TheTwoCopiesOfATiedEmbeddingStayTheSame) {
  const auto tables = copies_after_training(on({.pipeline = 2}, deep_llama(true)), {"model.embed_tokens.weight"});
  EXPECT_FALSE(tables[0].empty());
  EXPECT_EQ(tables[0], tables[1]);
}

TEST(PipelineParallel, RecomputingGivesTheSameBits) {
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    Training training = on({.pipeline = 2, .schedule = schedule}, deep_llama(false));
    const Record usual = train(training);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      training.recompute = recompute;
      expect_same_bits(train(training), usual);
    }
  }
}

TEST(Hybrid, ProductsOfAllAxes) {
  const ModelConfig model = deep_llama(true);
  const Record one = reference(model);
  for (const Layout& layout :
       {Layout{.tensor = 2, .context = 2, .pipeline = 2},
        Layout{.data = 2, .zero = 3, .tensor = 2, .pipeline = 2, .schedule = "zero-bubble"},
        Layout{.data = 1, .zero = 2, .replicate = 2, .context = 2, .pipeline = 2, .schedule = "interleaved", .virtual_stages = 2}}) {
    SCOPED_TRACE(layout.parallel().text());
    expect_equivalent(train(on(layout, model)), one);
  }
}

TEST(Hybrid, TwiceTheSameBits) {
  const Training training = on({.tensor = 2, .context = 2, .pipeline = 2, .schedule = "zero-bubble"}, deep_llama(true));
  expect_same_bits(train(training), train(training));
}

// Activations a rank holds for 1F1B do not depend on the number of micro-batches; GPipe's do.
TEST(PipelineParallel, ActivationMemoryOfOneForwardOneBackwardDoesNotGrow) {
  const auto activations = [](const char* schedule, std::int64_t micro_batches) {
    std::size_t bytes = 0;
    run_ranks(2, [&](World& world) {
      Training training = on({.pipeline = 2, .schedule = schedule}, deep_llama(false));
      EngineOptions options = training.engine_options();
      options.micro_batches = micro_batches;
      const ParallelAxes axes(world, training.layout.parallel(), training.model);
      const Engine engine(options, axes.groups());
      if (world.rank() == 0) bytes = engine.device().allocations().at("activations");
    });
    return bytes;
  };
  EXPECT_EQ(activations("1f1b", 4), activations("1f1b", 32));
  EXPECT_EQ(activations("gpipe", 32), 8 * activations("gpipe", 4));
}

// Ring attention: what a rank keeps falls as 1/cp, so that a sequence over one rank's budget runs on four.
TEST(ContextParallel, MemoryFallsAsOneOverRanks) {
  constexpr std::int64_t tokens = 2048;
  std::size_t budget = 0;
  double loss_of_one = 0;
  const auto activations = [&](int ranks) {
    std::size_t bytes = 0;
    run_ranks(ranks, [&](World& world) {
      Training training = on({.context = ranks});
      EngineOptions options = training.engine_options();
      options.sequence_length = options.model.max_position_embeddings = tokens;
      options.micro_batch_size = 1;
      const ParallelAxes axes(world, training.layout.parallel(), training.model);
      Engine engine(options, axes.groups());
      if (world.rank() == 0) bytes = engine.device().allocations().at("activations");
      if (budget != 0 && bytes > budget) return;
      std::vector<std::int32_t> inputs(tokens), targets(tokens);
      for (std::int64_t t = 0; t < tokens; ++t) {
        inputs[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t * 7 % vocabulary);
        targets[static_cast<std::size_t>(t)] = static_cast<std::int32_t>((t + 1) * 7 % vocabulary);
      }
      engine.units().initialize_weights(11);
      double loss = engine.gradients({inputs, targets, 1}, static_cast<double>(tokens));
      axes.everyone().all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::sum).wait();
      if (ranks == 1) loss_of_one = loss;
      EXPECT_NEAR(loss, loss_of_one, 1e-6 * loss_of_one);
    });
    return static_cast<double>(bytes);
  };
  const double one = activations(1);
  EXPECT_NEAR(activations(2) / one, 1.0 / 2, 0.01);
  budget = static_cast<std::size_t>(0.3 * one);
  const double four = activations(4);
  EXPECT_NEAR(four / one, 1.0 / 4, 0.01);
  EXPECT_LT(four, static_cast<double>(budget));
}

}  // namespace
}  // namespace baleen
