// Layouts of several axes as a user types them: training, a signal, resuming in another layout, traces, `verify`, `doctor --layout`.
#include <fmt/format.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

class Hybrid : public TrainingFixture {
 protected:
  static std::vector<std::string> layout(const std::string& ranks, int steps, const std::vector<std::string>& keys) {
    std::vector<std::string> arguments{"--ranks", ranks, "--set", "training.steps=" + std::to_string(steps)};
    for (const std::string& key : keys) arguments.insert(arguments.end(), {"--set", "parallelism." + key});
    return arguments;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> found;
    for (const auto& row : rows(run)) found.push_back(row["loss"]);
    return found;
  }
};

TEST_F(Hybrid, ARunMovesThroughAllKindsOfLayouts) {
  ASSERT_EQ(train("whole", layout("1", 20, {})).exit_code, 0);
  CommandResult result = train("moved", layout("4", 5, {"tensor=2", "pipeline=2"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.error.find("ranks by pp x tp"), std::string::npos) << result.error;
  result = train("moved", layout("4", 10, {"context=2", "zero=3"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  result = train("moved", layout("4", 15, {"pipeline=2", "schedule=zero-bubble", "zero=2"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(run_baleen({"checkpoint", "verify", folder / "moved"}).exit_code, 0);
  ASSERT_EQ(run_baleen({"checkpoint", "reshard", folder / "moved", "--ranks", "1"}).exit_code, 0);
  result = train("moved", layout("1", 20, {}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const std::vector<double> whole = losses("whole"), moved = losses("moved");
  ASSERT_EQ(moved.size(), 20u);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(moved[i], whole[i], 1e-5) << i;
}

// What `bench train` tells of a pipeline: the times of each chunk's passes, the bubble that they left and the one that they should have
// left.
TEST_F(Hybrid, TheBenchTimesThePassesAndSimulatesTheBubble) {
  for (const std::string schedule : {"1f1b", "zero-bubble"}) {
    SCOPED_TRACE(schedule);
    const CommandResult result =
        run_baleen({"bench", "train", folder / "config.toml", "--ranks", "2", "--steps", "2", "--json", "--set", "parallelism.pipeline=2",
                    "--set", "parallelism.schedule=" + schedule, "--set", "training.micro_batch_size=1"});
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto pipeline = parse_json(result.out, "output")["pipeline"];
    ASSERT_EQ(pipeline["chunks"].size(), 2u) << pipeline;
    double longest = 0;
    for (const auto& chunk : pipeline["chunks"]) {
      ASSERT_GT(chunk["forward_ms"], 0) << pipeline;
      ASSERT_GT(chunk["backward_input_ms"], 0) << pipeline;
      ASSERT_EQ(chunk["backward_weight_ms"] > 0, schedule == "zero-bubble") << pipeline;  // else both halves are one
      longest = std::max(longest, chunk["forward_ms"].get<double>() + chunk["backward_input_ms"].get<double>() +
                                      chunk["backward_weight_ms"].get<double>());
    }
    const double micro_batches = 8;
    for (const std::string which : {"", "simulated_"}) {
      const double bubble = pipeline[which + "bubble_fraction"], span = pipeline[which + "span_ms"];
      EXPECT_GT(bubble, 0) << pipeline;
      EXPECT_LT(bubble, 1) << pipeline;
      EXPECT_GE(span, micro_batches * longest * 0.999) << pipeline;
    }
  }
  const CommandResult alone = run_baleen({"bench", "train", folder / "config.toml", "--ranks", "1", "--steps", "1", "--json"});
  ASSERT_EQ(alone.exit_code, 0) << alone.error;
  EXPECT_TRUE(parse_json(alone.out, "output")["pipeline"].is_null());
}

TEST_F(Hybrid, GptGoesOnWithItsFusedWeightsCutAndWhole) {
  write_text(folder / "config.toml",
             "[model]\narchitecture = \"gpt2\"\nn_embd = 32\nn_layer = 2\nn_head = 4\nn_positions = 32\n[data]\ntrain = \"corpus.bin\"\n"
             "[training]\nsteps = 9\nsequence_length = 32\nmicro_batch_size = 2\nglobal_batch_size = 4\ndtype = \"fp32\"\nthreads = 1\n");
  ASSERT_EQ(train("whole", layout("1", 9, {})).exit_code, 0);
  ASSERT_EQ(train("moved", layout("2", 3, {"tensor=2"})).exit_code, 0);
  ASSERT_EQ(train("moved", layout("1", 6, {})).exit_code, 0);
  const CommandResult result = train("moved", layout("4", 9, {"tensor=4"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const std::vector<double> whole = losses("whole"), moved = losses("moved");
  ASSERT_EQ(moved.size(), 9u);
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(moved[i], whole[i], 1e-5) << i;
}

TEST_F(Hybrid, ASignalSavesAndTheRunGoesOnWithTheSameBits) {
  const std::vector<std::string> keys{"tensor=2", "pipeline=2", "zero=1"};
  Command first(baleen_arguments(train_arguments("stopped", layout("4", 1'000'000, keys))));
  wait_for_rows(first, "stopped", 5);
  first.signal(SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 75);
  const int end = static_cast<int>(rows("stopped").size()) + 20;  // wherever the signal came
  ASSERT_EQ(train("stopped", layout("4", end, keys)).exit_code, 0);
  ASSERT_EQ(train("whole", layout("4", end, keys)).exit_code, 0);
  EXPECT_EQ(record("stopped"), record("whole"));
  const std::string last = fmt::format("step_{:08}", end);
  EXPECT_EQ(weights("stopped", last), weights("whole", last));
}

TEST_F(Hybrid, ATraceHasARowForEachRankAndQueue) {
  std::vector<std::string> arguments = layout("4", 3, {"pipeline=2"});
  arguments.insert(arguments.end(), {"--trace", folder / "step.json"});
  const CommandResult result = train("run", arguments);
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const std::string trace = read_text(folder / "step.json");
  EXPECT_EQ(trace.rfind("{\"traceEvents\":[", 0), 0u);
  for (const char* part :
       {"rank 0", "rank 3", "\"compute\"", "comm dp", "comm pp activations", "forward of chunk 1, micro-batch 0", "all_reduce", "\"dur\""})
    EXPECT_NE(trace.find(part), std::string::npos) << part;
  EXPECT_GT(rows("run").back()["bubble_fraction"], 0.0);
  EXPECT_EQ(train("unwritable", layout("1", 2, {})).exit_code, 0);
  arguments.back() = folder / "no/such/folder/step.json";
  EXPECT_EQ(train("other", arguments).exit_code, 3);
}

// A representative subset; all of them take minutes (docs/parallelism.md).
TEST_F(Hybrid, VerifyProvesLayoutsOfFourRanks) {
  const CommandResult result = run_baleen({"verify", folder / "config.toml", "--ranks", "4", "--layouts",
                                           "tp=4;tp=2,cp=2;cp=4;pp=2,dp=2,zero=3;pp=2,tp=2,schedule=zero-bubble;pp=2,cp=2,schedule=gpipe;"
                                           "dp=2,tp=2,zero=2;replicate=2,cp=2,zero=1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.error;
  EXPECT_EQ(result.out.find("BAD"), std::string::npos) << result.out;
  // On the way, for whoever waits.
  EXPECT_NE(result.error.find("1 of 8: tp=4 ok, "), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("8 of 8: replicate=2,zero=1,cp=2 ok, "), std::string::npos) << result.error;
}

TEST_F(Hybrid, VerifyHoldsGradientsOfHalvesToTheirBounds) {
  const CommandResult result =
      run_baleen({"verify", folder / "config.toml", "--ranks", "4", "--set", "training.dtype=bf16", "--set",
                  "optimizer.gradient_dtype=bf16", "--layouts", "dp=4;dp=2,zero=3,tp=2;pp=2,cp=2;replicate=2,dp=2,zero=2"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.error;
  EXPECT_EQ(result.out.find("BAD"), std::string::npos) << result.out;
}

TEST_F(Hybrid, DoctorPrintsTheGridOfALayout) {
  const CommandResult result = run_baleen({"doctor", "--layout", "pp=2,dp=2,tp=2"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_NE(result.out.find("8 ranks by pp x dp x tp\n  pp=0: [0 1] [2 3]\n  pp=1: [4 5] [6 7]"), std::string::npos) << result.out;
  EXPECT_EQ(run_baleen({"doctor", "--layout", "px=2"}).exit_code, 2);
}

}  // namespace
}  // namespace baleen::testing
