// Data parallelism equals one rank: at the initial weights and over fifty steps, at one global batch, with targets to ignore that fall
// unevenly on the ranks (docs/numerics.md).
#include <gtest/gtest.h>

#include <cstring>

#include "parallel/small_training.h"
#include "sharding/replica_check.h"

namespace baleen {
namespace {

using namespace testing;

constexpr std::int64_t steps = 50;

Record train_on(int ranks, ReduceOp op = ReduceOp::sum, std::int64_t micro_batch = 1) {
  Training training;
  training.layout.data = ranks;
  training.op = op;
  training.micro_batch = micro_batch;
  return train(training);
}

TEST(DataParallel, OneToFourRanksAgreeOverFiftySteps) {
  const Record one = train_on(1);
  EXPECT_LT(one.losses.back(), 0.9 * one.losses.front());
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expect_equivalent(train_on(ranks), one);
  }
}

TEST(DataParallel, AveragingEqualsSummingTheScaledLoss) {
  expect_equivalent(train_on(3, ReduceOp::avg), train_on(1));
}

TEST(DataParallel, MicroBatchesDoNotMatter) {
  expect_equivalent(train_on(2, ReduceOp::sum, 3), train_on(2, ReduceOp::sum, 1));
}

TEST(DataParallel, TwiceTheSameBits) {
  const Record a = train_on(3), b = train_on(3);
  expect_same_bits(a, b);
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
      Engine engine({small_llama(), 6, length, 1, StorageKind::training, ReduceOp::sum}, axis);
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
    Engine engine({small_llama(), 1, length, 1, StorageKind::training, ReduceOp::sum}, axis);
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
