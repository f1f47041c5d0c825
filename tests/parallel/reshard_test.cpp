// A checkpoint of one layout goes on in another (docs/numerics.md, "What is equal to what").
#include <gtest/gtest.h>

#include <filesystem>

#include "parallel/small_training.h"
#include "train/checkpoint_saver.h"
#include "train/reshard.h"

namespace baleen {
namespace {

using namespace testing;

constexpr std::int64_t saved_at = 10, further = 20;

class Reshard : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/tmp/baleen-reshard-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    run_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(run_); }
  std::filesystem::path checkpoint() const { return run_ / "checkpoints" / "step_00000010"; }

  // Steps begin + 1 to end; begins from the checkpoint where begin is not 0, and saves one at step 10.
  Record steps(const Training& training, std::int64_t begin, std::int64_t end) const {
    Record record;
    std::mutex mutex;
    run_ranks(training.layout.ranks(), [&](World& world) {
      const ParallelAxes axes(world, training.layout.parallel(), training.model);
      Engine engine(training.engine_options(), axes.groups());
      AdamWOptimizer optimizer({.seed = 3}, engine.device(), engine.units());
      if (begin == 0) {
        engine.units().initialize_weights(11);
      } else {
        checkpoint::CheckpointReader reader(checkpoint());
        load_checkpoint(reader, engine.units(), true);
      }
      const UnevenBatches batches;
      TrainingStep training_step(engine, optimizer, batches, LrSchedule{LrScheduleKind::constant, 1e-3, 0, 0, saved_at + further, 0.1},
                                 1.0);
      for (std::int64_t step = begin + 1; step <= end; ++step) {
        const auto result = training_step.run(step, false);
        if (world.rank() == 0) record.losses.push_back(result->loss), record.norms.push_back(result->grad_norm);
        if (step != saved_at) continue;
        engine.settle_weights();
        TrainingState state;
        state.step = step;
        state.model_config = model_config_json(training.model);
        save_checkpoint(run_, state, axes.groups().data, engine.units(), 3);
      }
      if (record.last_weights.empty()) {
        const std::lock_guard lock(mutex);
        record.last_weights.resize(engine.units().parameters().size());
      }
      const std::lock_guard lock(mutex);
      put_updated(training.model, engine.units(), &UnitStorage::master, record.last_weights);
    });
    return record;
  }

  std::filesystem::path run_;
};

// The last `further` steps of a record that has them all.
Record tail(Record record) {
  record.losses.erase(record.losses.begin(), record.losses.end() - further);
  record.norms.erase(record.norms.begin(), record.norms.end() - further);
  return record;
}

TEST_F(Reshard, FromFourRanksOfStage3ToFewerAndOtherStages) {
  const Training written{.model = untied_llama(), .layout = {4, 3}};
  const Record whole = tail(steps(written, 0, saved_at + further));
  for (const int ranks : {1, 2, 3, 4})
    for (const int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(zero));
      const Record resumed = steps({.model = untied_llama(), .layout = {ranks, zero}}, saved_at, saved_at + further);
      for (std::size_t i = 0; i < further; ++i) EXPECT_NEAR(resumed.losses[i], whole.losses[i], 1e-5) << "step " << i;
      if (ranks == 4) expect_same_bits(resumed, whole);  // one world size, no accumulation: every stage
    }
  const Record hybrid = steps({.model = untied_llama(), .layout = {2, 2, 2}}, saved_at, saved_at + further);
  for (std::size_t i = 0; i < further; ++i) EXPECT_NEAR(hybrid.losses[i], whole.losses[i], 1e-5) << "step " << i;
}

TEST_F(Reshard, IntoAnotherPrecisionOfWeightsAndStates) {
  const Training written{.layout = {4, 3}};
  const Record whole = tail(steps(written, 0, saved_at + further));
  for (const DType state : {DType::f32, DType::bf16})
    for (const int zero : {0, 2, 3}) {
      SCOPED_TRACE(std::string(dtype_name(state)) + ", stage " + std::to_string(zero));
      const Record resumed = steps({.layout = {2, zero}, .compute = DType::bf16, .state = state}, saved_at, saved_at + further);
      for (std::size_t i = 0; i < further; ++i) EXPECT_NEAR(resumed.losses[i], whole.losses[i], 0.01 * whole.losses[i]) << "step " << i;
    }
}

TEST_F(Reshard, HybridLayoutsWriteEachShardOnce) {
  const Training written{.layout = {2, 1, 2}};
  const Record whole = tail(steps(written, 0, saved_at + further));
  EXPECT_EQ(checkpoint::CheckpointReader(checkpoint()).manifest().world, 2);
  EXPECT_TRUE(checkpoint::CheckpointReader(checkpoint()).verify().empty());
  expect_same_bits(steps(written, saved_at, saved_at + further), whole);
}

TEST_F(Reshard, RewritesACheckpointForOtherRanksBitByBit) {
  const Training written{.layout = {3, 2}};
  const Record whole = tail(steps(written, 0, saved_at + further));
  for (const int ranks : {5, 1}) {
    EXPECT_EQ(reshard_checkpoint(run_, -1, ranks), saved_at);
    checkpoint::CheckpointReader reader(checkpoint());
    EXPECT_EQ(reader.manifest().world, ranks);
    EXPECT_TRUE(reader.verify().empty());
    expect_same_bits(steps(written, saved_at, saved_at + further), whole);
  }
  EXPECT_THROW(reshard_checkpoint(run_, 11, 2), Error);
  EXPECT_THROW(reshard_checkpoint(run_ / "nothing", -1, 2), Error);
  EXPECT_FALSE(std::filesystem::exists(run_ / "nothing"));
}

}  // namespace
}  // namespace baleen
