// Saving in the background: what is written is what was there when the save began, and a save that fails fails on every rank.
#include "train/checkpoint_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "parallel/small_training.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;
using namespace testing;

class Saver : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    std::string name = "/tmp/baleen-saver-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  static TrainingState state(std::int64_t step) {
    TrainingState state;
    state.step = step;
    state.model_config = model_config_json(small_llama());
    return state;
  }
  // All files of a checkpoint.
  static std::string content(const fs::path& checkpoint) {
    std::vector<fs::path> files(fs::directory_iterator(checkpoint), fs::directory_iterator{});
    std::sort(files.begin(), files.end());
    std::string all;
    for (const fs::path& file : files) {
      std::ifstream stream(file, std::ios::binary);
      all += file.filename().string() + std::string(std::istreambuf_iterator<char>(stream), {});
    }
    return all;
  }
  static void clear_weights(UnitStorage& units) {
    for (int unit = 0; unit < units.units(); ++unit) {
      const Tensor master = units.master(unit);
      std::fill_n(master.as<float>(), master.elements(), 0.5f);
    }
  }
  fs::path folder_;
};
INSTANTIATE_TEST_SUITE_P(, Saver,
                         ::testing::Values(Layout{.data = 2}, Layout{.data = 2, .zero = 3}, Layout{.data = 2, .tensor = 2},
                                           Layout{.tensor = 2, .pipeline = 2}),
                         [](const auto& layout) {
                           const Layout& l = layout.param;
                           return "Data" + std::to_string(l.data) + "Zero" + std::to_string(l.zero) + "Tensor" + std::to_string(l.tensor) +
                                  "Pipeline" + std::to_string(l.pipeline);
                         });

TEST_P(Saver, WritesWhatWasThereWhenItBegan) {
  const Training training{.layout = GetParam()};
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    save_checkpoint(folder_ / "front", state(4), engine.group(), engine.units(), 3);
    CheckpointSaver saver(folder_ / "back", 3, engine.group(), engine.units(), &engine.device());
    EXPECT_TRUE(saver.background());
    saver.begin(state(4));
    clear_weights(engine.units());  // training goes on
    // As training steps do: each rank tells, all hear the sums.
    for (int i = 0; i < 3; ++i) {
      const auto mine = saver.tell();
      std::array<double, 2> votes{mine.unwritten, mine.failed};
      engine.everyone().all_reduce(votes.data(), votes.data(), 2, DType::f64, ReduceOp::sum).wait();
      saver.hear({votes[0], votes[1]});
    }
    saver.begin(state(8));  // waits for the other
    saver.finish();
    EXPECT_GT(saver.times().bytes, 0u);
  });
  EXPECT_EQ(content(folder_ / "back/checkpoints/step_00000004"), content(folder_ / "front/checkpoints/step_00000004"));
  EXPECT_NE(content(folder_ / "back/checkpoints/step_00000008"), content(folder_ / "front/checkpoints/step_00000004"));
  EXPECT_EQ(checkpoint::CheckpointReader(folder_ / "back/checkpoints/step_00000008").verify(), std::vector<std::string>());
}

TEST_P(Saver, AFailureIsHeardByAllAndLeavesTheFormerCheckpoint) {
  const Training training{.layout = GetParam()};
  const auto former = signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  std::atomic<int> failures{0}, named{0};
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    CheckpointSaver saver(folder_, 1, engine.group(), engine.units(), &engine.device());
    saver.begin(state(1));
    saver.finish();
    engine.everyone().barrier().wait();
    // Files of this process may not grow beyond 4 KB: what a full disk answers to a write.
    const rlimit small{4096, unlimited.rlim_max};
    if (world.rank() == 0) setrlimit(RLIMIT_FSIZE, &small);
    engine.everyone().barrier().wait();
    try {
      saver.begin(state(2));
      saver.finish();
    } catch (const Error& error) {
      ++failures;
      named +=
          error.code() == ExitCode::bad_data && std::string(error.what()).find("step_00000002.incomplete") != std::string::npos ? 1 : 0;
    }
    engine.everyone().barrier().wait();
    if (world.rank() == 0) setrlimit(RLIMIT_FSIZE, &unlimited);
    engine.everyone().barrier().wait();
    if (world.rank() == 0) {
      const auto kept = checkpoint::list_checkpoints(folder_);
      ASSERT_EQ(kept.size(), 1u);
      EXPECT_EQ(kept[0].step, 1);
      EXPECT_EQ(checkpoint::CheckpointReader(kept[0].directory).verify(), std::vector<std::string>());
    }
    engine.everyone().barrier().wait();
    saver.begin(state(3));
    saver.finish();
  });
  signal(SIGXFSZ, former);
  EXPECT_EQ(failures, training.layout.ranks());
  EXPECT_GE(named, 1);
  EXPECT_EQ(checkpoint::list_checkpoints(folder_).back().step, 3);
}

// A saver that goes while it writes stops its thread and leaves nothing that counts.
TEST_P(Saver, GivesUpWhenItGoes) {
  const Training training{.layout = GetParam()};
  run_ranks(training.layout.ranks(), [&](World& world) {
    const ParallelAxes axes(world, training.layout.parallel(), training.model);
    Engine engine(training.engine_options(), axes.groups());
    engine.units().initialize_weights(11);
    CheckpointSaver(folder_, 1, engine.group(), engine.units(), &engine.device()).begin(state(1));
  });
  EXPECT_TRUE(checkpoint::list_checkpoints(folder_).empty());
}

}  // namespace
}  // namespace baleen
