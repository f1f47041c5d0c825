// `baleen train` as a user types it: metrics, checkpoints, resume, text from the result.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

using Train = TrainingFixture;

TEST_F(Train, TwoRanksLearnAndLeaveACompleteRun) {
  const CommandResult result = train("run", {"--ranks", "2", "--set", "training.eval_every=50"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out, "");
  const auto all = rows("run");
  ASSERT_EQ(all.size(), 100u);
  EXPECT_NEAR(all.front()["loss"], std::log(257.0), 0.5);
  EXPECT_LT(all.back()["loss"], 0.6 * all.front()["loss"]);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "model_tflops", "mfu",
                          "memory_peak_bytes", "comm_bytes", "comm_ms", "comm_exposed_ms", "bubble_fraction"})
    EXPECT_TRUE(all.back().contains(key)) << key;
  EXPECT_EQ(all.back()["tokens"], 100 * 8 * 32);
  EXPECT_TRUE(std::isnan(all.back()["mfu"]));
  const std::string metrics = read_text(folder / "run/metrics.jsonl");
  EXPECT_NE(metrics.find("\"val_loss\""), std::string::npos);
  EXPECT_NE(metrics.find("\"bits_per_byte\""), std::string::npos);
  for (const char* file : {"config.toml", "log.txt", "metrics.jsonl", "checkpoints/step_00000100/manifest.json"})
    EXPECT_TRUE(std::filesystem::exists(folder / (std::string("run/") + file))) << file;

  // The resolved config is a config; the finished run says so and exits 0.
  const CommandResult again = run_baleen({"train", folder / "run/config.toml", "--ranks", "2", "--out", folder / "run"});
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_NE(again.error.find("finished"), std::string::npos) << again.error;

  const CommandResult text = run_baleen({"generate", folder / "run", "--prompt", "Line 1", "--tokens", "40", "--temperature", "0"});
  EXPECT_EQ(text.exit_code, 0) << text.error;
  EXPECT_EQ(text.out.substr(0, 6), "Line 1");
  const CommandResult eval = run_baleen({"eval", folder / "run", "--data", folder / "corpus.val.bin", "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.error;
  const auto report = parse_json(eval.out, "output");
  EXPECT_LT(report["bits_per_byte"].get<double>(), 5.0);
  EXPECT_NEAR(report["bits_per_byte"].get<double>(), report["loss"].get<double>() / std::log(2.0), 0.01);  // bytes: a token a byte
}

TEST_F(Train, TheSameCommandTwiceGivesTheSameBits) {
  ASSERT_EQ(train("a", {"--ranks", "3", "--set", "training.steps=12", "--set", "training.global_batch_size=12"}).exit_code, 0);
  ASSERT_EQ(train("b", {"--ranks", "3", "--set", "training.steps=12", "--set", "training.global_batch_size=12"}).exit_code, 0);
  EXPECT_EQ(record("a"), record("b"));
  EXPECT_EQ(weights("a", "step_00000012"), weights("b", "step_00000012"));
}

TEST_F(Train, TermSavesExits75AndResumesToTheSameBits) {
  const auto steps = [](std::size_t count) {
    return std::vector<std::string>{"--ranks", "2", "--set", "training.steps=" + std::to_string(count)};
  };
  Command command(baleen_arguments(train_arguments("stopped", steps(1'000'000))));
  wait_for_rows(command, "stopped", 30);
  command.signal(SIGTERM);
  const CommandResult stopped = command.wait();
  ASSERT_EQ(stopped.exit_code, 75) << stopped.error;
  const std::size_t end = rows("stopped").size() + 20;  // wherever the signal came
  const CommandResult resumed = train("stopped", steps(end));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_NE(resumed.error.find("resumed from"), std::string::npos);
  ASSERT_EQ(train("whole", steps(end)).exit_code, 0);
  EXPECT_EQ(record("stopped"), record("whole"));
  const std::string last = fmt::format("step_{:08}", end);
  EXPECT_EQ(weights("stopped", last), weights("whole", last));
}

// A checkpoint without data, as an imported one, is no reason to pass over sound ones.
TEST_F(Train, OtherDataAreRefusedAndNothingIsSetAside) {
  const std::vector<std::string> model{"--set", "model.vocab_size=257", "--set", "checkpoint.every=5", "--set", "data.train=corpu*.bin"};
  const auto with = [&](const std::string& steps) {
    std::vector<std::string> more{"--set", "training.steps=" + steps};
    more.insert(more.end(), model.begin(), model.end());
    return more;
  };
  auto untrained = with("0");
  untrained.insert(untrained.end(), {"--set", "data.train=", "--set", "data.validation="});
  ASSERT_EQ(train("run", untrained).exit_code, 0);
  ASSERT_EQ(train("run", with("10")).exit_code, 0);
  const std::string before = record("run");
  std::filesystem::copy_file(std::filesystem::path(folder / "corpus.bin"), std::filesystem::path(folder / "corpus2.bin"));
  const CommandResult other = train("run", with("20"));
  EXPECT_EQ(other.exit_code, 3) << other.error;
  EXPECT_NE(other.error.find("added since the checkpoint"), std::string::npos) << other.error;
  EXPECT_EQ(record("run"), before);
  for (const char* step : {"step_00000005", "step_00000010"})
    EXPECT_TRUE(std::filesystem::exists(folder / ("run/checkpoints/" + std::string(step)))) << step;
}

// What a kill between two renames leaves, on a file system that cannot exchange names.
TEST_F(Train, EveryRankGoesOnFromAFormerCheckpoint) {
  ASSERT_EQ(train("run", {"--set", "training.steps=4"}).exit_code, 0);
  const std::string step = folder / "run/checkpoints/step_00000004";
  for (const std::vector<std::string>& how : {std::vector<std::string>{}, {"--resume", "4"}}) {
    std::filesystem::rename(step, step + ".replaced");
    std::vector<std::string> more{"--set", "training.steps=4", "--ranks", "2"};
    more.insert(more.end(), how.begin(), how.end());
    const CommandResult resumed = train("run", more);
    EXPECT_EQ(resumed.exit_code, 0) << resumed.error;
    EXPECT_NE(resumed.error.find("the run is finished: step 4"), std::string::npos) << resumed.error;
    std::filesystem::rename(step + ".replaced", step);
  }
}

TEST_F(Train, AFinishedRunHasAnExportOfItsLastStep) {
  const std::vector<std::string> exporting{"--set", "checkpoint.export_hf=true"};
  const auto steps = [](const std::string& count, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--set", "training.steps=" + count});
    return more;
  };
  ASSERT_EQ(train("run", steps("2", exporting)).exit_code, 0);
  ASSERT_EQ(train("run", steps("4")).exit_code, 0);
  ASSERT_EQ(train("run", steps("4", exporting)).exit_code, 0);
  ASSERT_EQ(run_baleen({"export", folder / "run", "--out", folder / "fresh"}).exit_code, 0);
  const auto exported = read_text(folder / "run/export/model.safetensors");
  EXPECT_EQ(exported, read_text(folder / "fresh/model.safetensors"));
  const auto time = std::filesystem::last_write_time(std::filesystem::path(folder / "run/export/config.json"));
  ASSERT_EQ(train("run", steps("4", exporting)).exit_code, 0);  // once is enough
  EXPECT_EQ(std::filesystem::last_write_time(std::filesystem::path(folder / "run/export/config.json")), time);
}

// The losses that spikes are measured against go along: a run that stops and goes on goes back where one that never stopped does.
TEST_F(Train, SpikesAreTheSameAfterAResume) {
  const auto steps = [](const std::string& count) {
    return std::vector<std::string>{"--set", "fault.spike_factor=1.02", "--set", "optimizer.lr=0.05",   "--set", "fault.spike_window=3",
                                    "--set", "fault.spike_limit=1000",  "--set", "checkpoint.every=10", "--set", "training.steps=" + count};
  };
  const CommandResult whole = train("whole", steps("60"));
  ASSERT_EQ(whole.exit_code, 0) << whole.error;
  ASSERT_NE(whole.error.find("going back to the last checkpoint"), std::string::npos) << whole.error;
  for (const char* end : {"13", "25", "38", "60"}) ASSERT_EQ(train("stopped", steps(end)).exit_code, 0);
  EXPECT_EQ(record("stopped"), record("whole"));
  EXPECT_EQ(weights("stopped", "step_00000060"), weights("whole", "step_00000060"));
}

TEST_F(Train, ResumeFromAStepOrNever) {
  const std::vector<std::string> often{"--set", "checkpoint.every=20", "--set", "checkpoint.keep=10"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), often.begin(), often.end());
    return more;
  };
  ASSERT_EQ(train("run", with({})).exit_code, 0);
  const std::string whole = record("run");
  const CommandResult from_40 = train("run", with({"--resume", "40"}));
  ASSERT_EQ(from_40.exit_code, 0) << from_40.error;
  EXPECT_EQ(record("run"), whole);
  const CommandResult missing = train("run", with({"--resume", "41"}));
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_NE(missing.error.find("20, 40, 60"), std::string::npos) << missing.error;
  ASSERT_EQ(train("run", with({"--resume", "never", "--set", "training.steps=20"})).exit_code, 0);
  EXPECT_EQ(rows("run").size(), 20u);
  EXPECT_EQ(train("run", with({"--resume", "soon"})).exit_code, 2);
}

TEST_F(Train, NoStepsNeedNoDataAndWriteTheInitialWeights) {
  const CommandResult result =
      train("initial", {"--set", "training.steps=0", "--set", "data.train=", "--set", "data.validation=", "--set", "model.vocab_size=257"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(std::filesystem::exists(folder / "initial/checkpoints/step_00000000/manifest.json"));
}

TEST_F(Train, RanksShareTheCores) {
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  const auto expect_threads = [&](const CommandResult& result, int ranks, int threads) {
    ASSERT_EQ(result.exit_code, 0) << result.error;
    EXPECT_NE(result.error.find(std::to_string(ranks) + " ranks of " + std::to_string(threads) + " threads"), std::string::npos)
        << result.error;
  };
  const std::vector<std::string> two{"--ranks", "2", "--set", "training.steps=1"};
  auto with = [&](const char* threads) {
    std::vector<std::string> all = two;
    all.insert(all.end(), {"--set", std::string("training.threads=") + threads});
    return all;
  };
  expect_threads(train("share", with("0")), 2, std::max(1, CPU_COUNT(&cores) / 2));
  expect_threads(train("three", with("3")), 2, 3);
}

TEST_F(Train, AvgEqualsSumWithScaling) {
  ASSERT_EQ(train("sum", {"--ranks", "2", "--set", "training.steps=30"}).exit_code, 0);
  ASSERT_EQ(train("avg", {"--ranks", "2", "--set", "training.steps=30", "--set", "comm.gradient_reduction=avg"}).exit_code, 0);
  const auto sum = rows("sum"), avg = rows("avg");
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i]["loss"], avg[i]["loss"], 1e-5);
}

}  // namespace
}  // namespace baleen::testing
