// Data parallelism equals one rank: at the initial weights and over fifty steps, at one global batch, with targets to ignore that fall
// unevenly on the ranks (DESIGN.md section 5, layout equivalence).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "base/rng.h"
#include "comm/thread_ranks.h"
#include "ops/cross_entropy.h"
#include "sharding/replica_check.h"
#include "train/step.h"

namespace baleen {
namespace {

using testing::run_members;

constexpr std::int64_t length = 24, global_batch = 12, steps = 50;

ModelConfig small_model() {
  ModelConfig config;
  config.hidden_size = 24;
  config.intermediate_size = 56;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.vocab_size = 41;
  config.max_position_embeddings = length;
  config.tie_word_embeddings = true;
  return config;
}

// A sequence that can be learnt. The first third of the batch ignores most targets, so that ranks hold very different numbers of valid
// ones: with three ranks, rank 0 has hardly any.
class UnevenBatches : public BatchSource {
 public:
  void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
    const Philox philox(derive_key(7, step));
    for (std::int64_t s = first; s < first + count; ++s) {
      auto token = static_cast<std::int32_t>(philox(static_cast<std::uint64_t>(s))[0] % 41);
      for (std::int64_t t = 0; t < length; ++t) {
        *inputs++ = token;
        token = (token * 5 + 3) % 41;
        *targets++ = s < global_batch / 3 && t != 20 ? ops::ignore_index : token;
      }
    }
  }
  std::int64_t sequence_length() const override { return length; }
  std::int64_t global_batch_size() const override { return global_batch; }
};

struct Record {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> first_gradients;  // after the first step's reduction, by parameter
  std::vector<std::vector<float>> last_weights;
};

std::vector<std::vector<float>> copy(const UnitStorage& units, Tensor (UnitStorage::*part)(ParameterId) const) {
  std::vector<std::vector<float>> all;
  for (const ParameterId id : units.parameters()) {
    const Tensor tensor = (units.*part)(id);
    all.emplace_back(tensor.as<float>(), tensor.as<float>() + tensor.elements());
  }
  return all;
}

Record train(int ranks, ReduceOp op = ReduceOp::sum, std::int64_t micro_batch = 1) {
  Record record;
  run_members(ranks, [&](Communicator& axis) {
    Engine engine({small_model(), micro_batch, length, 1, StorageKind::training, op}, axis);
    engine.units().initialize_weights(11);
    AdamWOptimizer optimizer({}, engine.device(), engine.units());
    const UnevenBatches batches;
    TrainingStep training_step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, steps, 0.1}, 1.0);
    for (std::int64_t step = 1; step <= steps; ++step) {
      const auto result = training_step.run(step, false);
      if (axis.rank() != 0) continue;
      record.losses.push_back(result->loss);
      record.norms.push_back(result->grad_norm);
      if (step == 1) record.first_gradients = copy(engine.units(), &UnitStorage::gradient);
    }
    check_replicas(axis, engine.units());
    if (axis.rank() == 0) record.last_weights = copy(engine.units(), &UnitStorage::weight);
  });
  return record;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

void expect_equivalent(const Record& layout, const Record& reference) {
  double whole = 0;
  for (const auto& gradient : reference.first_gradients) whole += norm(gradient) * norm(gradient);
  for (std::size_t p = 0; p < reference.first_gradients.size(); ++p) {
    std::vector<float> difference = layout.first_gradients[p];
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= reference.first_gradients[p][i];
    EXPECT_TRUE(norm(difference) <= 1e-5 * norm(reference.first_gradients[p]) + 1e-8 * std::sqrt(whole)) << "parameter " << p;
  }
  EXPECT_NEAR(layout.losses[0], reference.losses[0], 1e-6 * reference.losses[0]);
  EXPECT_NEAR(layout.norms[0], reference.norms[0], 1e-6 * reference.norms[0]);
  for (std::size_t step = 0; step < reference.losses.size(); ++step) EXPECT_NEAR(layout.losses[step], reference.losses[step], 1e-5) << "step " << step + 1;
}

TEST(DataParallel, OneToFourRanksAgreeOverFiftySteps) {
  const Record one = train(1);
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front());
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expect_equivalent(train(ranks), one);
  }
}

TEST(DataParallel, AveragingEqualsSummingTheScaledLoss) { expect_equivalent(train(3, ReduceOp::avg), train(1)); }

TEST(DataParallel, MicroBatchesDoNotMatter) { expect_equivalent(train(2, ReduceOp::sum, 3), train(2, ReduceOp::sum, 1)); }

TEST(DataParallel, TwiceTheSameBits) {
  const Record a = train(3), b = train(3);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.last_weights, b.last_weights);
}

// A rank that fails in the middle of a step takes its memory away; its reductions must have let go of it, and the others must hear of it.
TEST(DataParallel, AStepThatFailsHalfWayEndsEverywhere) {
  class Failing : public UnevenBatches {
   public:
    explicit Failing(bool fails) : fails_(fails) {}
    void fill(std::uint64_t step, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
      UnevenBatches::fill(step, first, count, inputs, targets);
      if (fails_ && step == 2) targets[0] = 1000;  // no such id: the loss of the last micro-batch's first chunk throws
    }

   private:
    bool fails_;
  };
  try {
    run_members(2, [&](Communicator& axis) {
      Engine engine({small_model(), 6, length, 1, StorageKind::training, ReduceOp::sum}, axis);
      engine.units().initialize_weights(11);
      AdamWOptimizer optimizer({}, engine.device(), engine.units());
      const Failing batches(axis.rank() == 1);
      TrainingStep training_step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, steps, 0.1}, 1.0);
      for (std::int64_t step = 1; step <= 5; ++step) training_step.run(step, false);
    });
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ExitCode::done);
  }
}

TEST(ReplicaCheck, NamesTheRankAndTheParameter) {
  run_members(3, [&](Communicator& axis) {
    Engine engine({small_model(), 1, length, 1, StorageKind::training, ReduceOp::sum}, axis);
    engine.units().initialize_weights(11);
    EXPECT_NO_THROW(check_replicas(axis, engine.units()));
    const ParameterId victim = engine.units().find("model.layers.1.mlp.up_proj.weight");
    if (axis.rank() == 2) {  // one bit
      std::uint32_t bits;
      float& value = engine.units().weight(victim).as<float>()[5];
      std::memcpy(&bits, &value, sizeof bits);
      bits ^= 1;
      std::memcpy(&value, &bits, sizeof bits);
    }
    try {
      check_replicas(axis, engine.units());
      ADD_FAILURE() << "the difference was not noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_numbers);
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("model.layers.1.mlp.up_proj.weight"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace baleen
