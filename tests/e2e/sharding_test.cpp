// ZeRO as a user types it: stages by the command line, resuming in another layout, resharding a checkpoint.
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

class Sharding : public TrainingFixture {
 protected:
  std::vector<std::string> steps(int count, const std::string& ranks, const std::string& zero,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"--ranks", ranks,
                                       "--set",   "parallelism.zero=" + zero,
                                       "--set",   "training.micro_batch_size=4",
                                       "--set",   "training.steps=" + std::to_string(count)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> found;
    for (const auto& row : rows(run)) found.push_back(row["loss"]);
    return found;
  }
};

TEST_F(Sharding, EveryStageWritesTheSameMetricsAndWeights) {
  ASSERT_EQ(train("plain", steps(12, "2", "0")).exit_code, 0);
  for (const char* zero : {"1", "2", "3"}) {
    const CommandResult result = train(std::string("stage") + zero, steps(12, "2", zero));
    ASSERT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(record(std::string("stage") + zero), record("plain")) << zero;
    EXPECT_EQ(weights(std::string("stage") + zero, "step_00000012"), weights("plain", "step_00000012")) << zero;
    EXPECT_NE(result.error.find(std::string("zero=") + zero), std::string::npos) << result.error;
  }
}

TEST_F(Sharding, ARunGoesOnInAnotherLayout) {
  ASSERT_EQ(train("whole", steps(20, "1", "0")).exit_code, 0);
  ASSERT_EQ(train("moved", steps(8, "2", "3")).exit_code, 0);
  ASSERT_EQ(train("moved", steps(14, "1", "0")).exit_code, 0);
  const CommandResult last =
      train("moved", steps(20, "4", "2", {"--set", "parallelism.replicate=2", "--set", "training.micro_batch_size=1"}));
  ASSERT_EQ(last.exit_code, 0) << last.error;
  const std::vector<double> whole = losses("whole"), moved = losses("moved");
  ASSERT_EQ(moved.size(), 20u);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(moved[i], whole[i], 1e-5) << i;
}

// A checkpoint has no gradients: it goes on with either kind.
TEST_F(Sharding, ARunGoesOnWithGradientsOfAnotherPrecision) {
  const auto more = [&](const std::string& dtype) {
    return std::vector<std::string>{"--set", "training.dtype=bf16",   "--set", "optimizer.gradient_dtype=" + dtype,
                                    "--set", "training.head_chunks=2"};
  };
  ASSERT_EQ(train("whole", steps(12, "2", "1", more("fp32"))).exit_code, 0);
  ASSERT_EQ(train("moved", steps(4, "2", "1", more("fp32"))).exit_code, 0);
  const CommandResult half = train("moved", steps(8, "2", "3", more("bf16")));
  ASSERT_EQ(half.exit_code, 0) << half.error;
  ASSERT_EQ(train("moved", steps(12, "1", "0", more("fp32"))).exit_code, 0);
  const std::vector<double> whole = losses("whole"), moved = losses("moved");
  ASSERT_EQ(moved.size(), 12u);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(moved[i], whole[i], 0.01 * whole[i]) << i;
}

TEST_F(Sharding, ReshardRewritesACheckpoint) {
  ASSERT_EQ(train("run", steps(6, "2", "1")).exit_code, 0);
  const CommandResult resharded = run_baleen({"checkpoint", "reshard", folder / "run", "--ranks", "3"});
  EXPECT_EQ(resharded.exit_code, 0) << resharded.error;
  EXPECT_NE(run_baleen({"checkpoint", "list", folder / "run"}).out.find("written by 3 ranks"), std::string::npos);
  EXPECT_EQ(run_baleen({"checkpoint", "verify", folder / "run"}).exit_code, 0);
  EXPECT_EQ(train("run", steps(8, "1", "0")).exit_code, 0);

  EXPECT_EQ(run_baleen({"checkpoint", "reshard", folder / "run"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"checkpoint", "reshard", folder / "run", "--ranks", "0"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"checkpoint", "reshard", folder / "run", "--ranks", "2", "--step", "7"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"checkpoint", "reshard", folder / "nothing", "--ranks", "2"}).exit_code, 3);
}

TEST_F(Sharding, BadLayoutsAreRefusedByName) {
  const CommandResult degrees = train("bad", {"--ranks", "3", "--set", "parallelism.replicate=2"});
  EXPECT_EQ(degrees.exit_code, 2);
  EXPECT_NE(degrees.error.find("3 ranks cannot be divided"), std::string::npos) << degrees.error;
  EXPECT_EQ(train("bad", {"--set", "parallelism.zero=4"}).exit_code, 2);
  const CommandResult state = train("bad", {"--set", "optimizer.state_dtype=bf16"});
  EXPECT_EQ(state.exit_code, 2);
  EXPECT_NE(state.error.find("training.dtype = \"bf16\""), std::string::npos) << state.error;
  const CommandResult gradient = train("bad", {"--set", "optimizer.gradient_dtype=bf16"});
  EXPECT_EQ(gradient.exit_code, 2);
  EXPECT_NE(gradient.error.find("optimizer.gradient_dtype = \"fp32\""), std::string::npos) << gradient.error;
}

}  // namespace
}  // namespace baleen::testing
