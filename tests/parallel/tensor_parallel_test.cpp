// Tensor and sequence parallelism equal one rank: at the initial weights and over many steps, for every family (docs/numerics.md).
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/small_training.h"

namespace baleen {
namespace {

using namespace testing;

Training on(int tensor, int data = 1, int zero = 0, std::int64_t steps = 10) {
  Training training;
  training.layout = {.data = data, .zero = zero, .tensor = tensor};
  training.micro_batch = 2;
  training.steps = steps;
  return training;
}

Record reference(Training training) {
  training.layout = {};
  return train(training);
}

TEST(TensorParallel, FiftyStepsOfTwoRanksAreThoseOfOne) {
  const Record one = reference(on(1, 1, 0, 50));
  expect_equivalent(train(on(2, 1, 0, 50)), one);
}

// Two KV heads on four ranks: pairs of ranks hold the same head. The vocabulary of 41 is not divisible.
TEST(TensorParallel, MoreRanksThanKvHeads) {
  const Record one = reference(on(1));
  for (const int zero : {0, 2}) expect_equivalent(train(on(4, 1, zero)), one);
}

TEST(TensorParallel, WithoutSequenceParallelism) {
  Training training = on(4);
  training.sequence_parallel = false;
  expect_equivalent(train(training), reference(training));
}

TEST(TensorParallel, EveryStageOfZeroBesideIt) {
  const Record one = reference(on(1));
  std::vector<Record> stages;
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    stages.push_back(train(on(2, 2, zero)));
    expect_equivalent(stages.back(), one);
  }
  // Three micro-batches a rank: stages 0 and 1 sum on the rank first, 2 and 3 reduce each.
  expect_same_bits(stages[0], stages[1]);
  expect_same_bits(stages[2], stages[3]);
}

TEST(TensorParallel, EveryFamily) {
  for (const ModelConfig& model : {small_gpt2(), small_qwen3(), untied_llama()}) {
    SCOPED_TRACE(model.architecture);
    Training training = on(2);
    training.model = model;
    const Record one = reference(training);
    expect_equivalent(train(training), one);
    training.layout.tensor = 4;
    expect_equivalent(train(training), one);
  }
}

TEST(TensorParallel, RecomputingGivesTheSameBits) {
  Training training = on(2);
  const Record usual = train(training);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    training.recompute = recompute;
    expect_same_bits(train(training), usual);
  }
}

// The weights of a norm are on every rank. Under sequence parallelism each rank computes the gradient of its tokens (fault 2 of
// docs/known-faults.md): without their sum the copies drift apart, from each other and from one rank's.
TEST(TensorParallel, CopiesOfNormWeightsStayTheSame) {
  const auto copies = copies_after_training(
      on(2), {"model.layers.0.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight", "model.norm.weight"});
  EXPECT_EQ(copies[0], copies[1]);
  EXPECT_NE(copies[0], std::vector<float>(copies[0].size(), 1.0f));
}

// The norm of the whole gradient counts every element once, whatever copies ranks hold.
TEST(TensorParallel, TheNormCountsCopiesOnce) {
  const Record one = reference(on(1, 1, 0, 1));
  for (const Layout& layout :
       {Layout{.tensor = 4}, Layout{.data = 2, .zero = 1, .tensor = 2}, Layout{.data = 1, .zero = 3, .replicate = 2, .tensor = 2}}) {
    Training training = on(1, 1, 0, 1);
    training.layout = layout;
    EXPECT_NEAR(train(training).norms[0], one.norms[0], 1e-6 * one.norms[0]);
  }
}

TEST(TensorParallel, HalvesStayNearOneRanksHalves) {
  Training training = on(2);
  training.compute = DType::bf16;
  const Record one = reference(training), two = train(training);
  for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(two.losses[i], one.losses[i], 5e-3) << i;
}

}  // namespace
}  // namespace baleen
