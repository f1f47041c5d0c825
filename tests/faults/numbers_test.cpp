// Numbers that go bad in a rank's memory for a while, and what the configuration makes of them.
#include <signal.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "faults/fault_fixture.h"

namespace baleen::testing {
namespace {

class Numbers : public FaultTest {
 protected:
  // A run whose weights stay as they are, with `bytes` of rank 1's, and the same with the exponent of one changed to `exponent`.
  void prepare(const std::vector<std::string>& more, unsigned char exponent, const std::string& parameter = "mlp") {
    settings_ = with_ranks({"--set", "optimizer.lr=0"});
    settings_.insert(settings_.end(), more.begin(), more.end());
    auto begin = settings_;
    begin.insert(begin.end(), {"--set", "training.steps=0"});
    ASSERT_EQ(train("run", begin).exit_code, 0);
    bytes_ = own_weights("run", "step_00000000", 1, parameter).first;
    damaged_ = bytes_;
    damaged_[11] = static_cast<char>(exponent);
  }
  std::vector<std::string> settings_;
  std::string bytes_, damaged_;
};
INSTANTIATE_TEST_SUITE_P(, Numbers, ::testing::ValuesIn(fault_layouts()), [](const auto& layout) { return layout.param.name; });

TEST_P(Numbers, StepsAreSkippedUntilTheyAreGoodAgain) {
  prepare({"--set", "checkpoint.every=0", "--set", "fault.nonfinite=skip", "--set", "fault.skip_limit=100000", "--set",
           "training.steps=1000000"},
          0x7f);
  Command command(baleen_arguments(train_arguments("run", settings_)));
  wait_for_rows(command, "run", 3);
  const auto ranks = ranks_of(command);
  damaged_[10] = '\xff';  // with the exponent a NaN
  if (change_memory(ranks, 1, bytes_, damaged_) < 0) GTEST_SKIP() << "memory of other processes may not be written here";
  const auto bad_rows = [&] {
    std::size_t bad = 0;
    for (const TrainingRow& row : rows("run")) bad += std::isnan(row["loss"]) ? 1 : 0;
    return bad;
  };
  while (command.running() && bad_rows() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(change_memory(ranks, 1, damaged_, bytes_), 1);
  const std::size_t rows_then = rows("run").size();
  wait_for_rows(command, "run", rows_then + 10);
  command.signal(SIGTERM);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 75) << result.error;
  EXPECT_NE(result.error.find("a step is skipped: loss "), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("not finite themselves: model.layers."), std::string::npos) << result.error;
  EXPECT_TRUE(std::isfinite(rows("run").back()["loss"]));
}

TEST_P(Numbers, TooManySkippedStepsEndTheRun) {
  prepare(
      {"--set", "checkpoint.every=0", "--set", "fault.nonfinite=skip", "--set", "fault.skip_limit=4", "--set", "training.steps=1000000"},
      0x7f);
  Command command(baleen_arguments(train_arguments("run", settings_)));
  wait_for_rows(command, "run", 3);
  const auto ranks = ranks_of(command);
  damaged_[10] = '\xff';
  if (change_memory(ranks, 1, bytes_, damaged_) < 0) GTEST_SKIP() << "memory of other processes may not be written here";
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 5) << result.error;
  EXPECT_NE(result.error.find("the numbers went bad in 4 steps in a row"), std::string::npos) << result.error;
  // Each of them has its row.
  const auto all = rows("run");
  ASSERT_GE(all.size(), 4u);
  for (std::size_t i = all.size() - 4; i < all.size(); ++i) EXPECT_TRUE(std::isnan(all[i]["loss"]) || std::isnan(all[i]["grad_norm"])) << i;
}

TEST_P(Numbers, ASpikeOfTheLossTakesTheRunBack) {
  // A weight of 2^20 in the head spoils every loss until the weights of the checkpoint are there again. The head is the embedding, of which
  // the last stage of a pipeline has a copy. The run goes back to its beginning, the one checkpoint there is, however late the change
  // comes.
  prepare({"--set", "checkpoint.every=0", "--set", "fault.spike_factor=1.2", "--set", "fault.spike_window=5", "--set", "fault.spike_skip=2",
           "--set", "training.steps=1000000"},
          0x49, "embed_tokens");
  Command command(baleen_arguments(train_arguments("run", settings_)));
  wait_for_rows(command, "run", 25);
  const auto ranks = ranks_of(command);
  const int places = change_memory(ranks, GetParam().name == std::string("Zero3") ? 1 : 3, bytes_, damaged_);
  if (places < 0) GTEST_SKIP() << "memory of other processes may not be written here";
  EXPECT_NE(places, 0);
  wait_for_message(command, "batches of the data are left out so far");
  wait_for_rows(command, "run", 25);
  command.signal(SIGTERM);
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 75) << result.error;
  EXPECT_NE(result.error.find("going back to the last checkpoint, without the batches since"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("batches of the data are left out so far"), std::string::npos) << result.error;
  const auto all = rows("run");
  ASSERT_GE(all.size(), 25u);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["step"], static_cast<double>(i + 1));
    EXPECT_LT(all[i]["loss"], 7) << i;
  }
}

}  // namespace
}  // namespace baleen::testing
