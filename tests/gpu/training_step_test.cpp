// The trainer's own step on a GPU: it only enqueues, its results come one step late, and they are the CPU's.
#include <atomic>

#include "gpu/support.h"
#include "parallel/small_training.h"

namespace baleen::testing {
namespace {

// Everything that one rank trains with.
class OneRank {
 public:
  OneRank(World& world, const Training& training, std::shared_ptr<Device> device, const LrSchedule& schedule,
          StepGraphs graphs = StepGraphs::where_possible)
      : axis_(world.create_communicator({0}, "one")),
        engine_(options(training, std::move(device)), *axis_),
        optimizer_({.seed = 3}, engine_.device(), engine_.units()),
        step_(engine_, optimizer_, batches_, schedule, 1.0, graphs) {
    engine_.units().initialize_weights(11);
  }
  Engine& engine() { return engine_; }
  TrainingStep& step() { return step_; }
  void poison_gradients() {
    for (const ParameterId id : engine_.units().parameters()) {
      const Tensor gradient = engine_.units().gradient(id);
      const std::vector<std::byte> ones(gradient.bytes(), std::byte{0xff});
      engine_.context().stream.copy(gradient.data(), ones.data(), ones.size());
      engine_.context().stream.synchronize();
    }
  }
  Parameters weights() {
    Parameters all;
    std::vector<std::byte> memory;
    engine_.settle_weights();
    const UnitStorage& units = engine_.units();
    for (int unit = 0; unit < units.units(); ++unit) {
      const Tensor master = units.on_host(units.master(unit), memory);
      all.emplace_back(master.as<float>(), master.as<float>() + master.elements());
    }
    return all;
  }

 private:
  static EngineOptions options(const Training& training, std::shared_ptr<Device> device) {
    EngineOptions options = training.engine_options();
    options.device = std::move(device);
    return options;
  }
  std::unique_ptr<Communicator> axis_;
  Engine engine_;
  AdamWOptimizer optimizer_;
  UnevenBatches batches_;
  TrainingStep step_;
};

// Of computation and of gradients.
constexpr std::pair<DType, DType> precisions[] = {{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};

constexpr LrSchedule constant{LrScheduleKind::constant, 1e-3, 0, 0, 100, 0.1};

struct Numbers {
  std::vector<double> losses, norms;
  Parameters weights;
  std::uint64_t waits = 0;  // of the host, while it enqueued steps after the first
  std::vector<bool> replayed;
};

class GpuTrainingStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!gpu_available()) GTEST_SKIP() << list_gpus().why_none;
  }
  // `poison`: before each step all gradients become NaN.
  static Numbers run(const Training& training, const std::shared_ptr<Device>& device, std::int64_t steps,
                     StepGraphs graphs = StepGraphs::where_possible, bool poison = false) {
    Numbers result;
    run_ranks(1, [&](World& world) {
      OneRank rank(world, training, device, constant, graphs);
      const auto take = [&] {
        const StepResult taken = rank.step().take();
        EXPECT_EQ(taken.step, static_cast<std::int64_t>(result.losses.size()) + 1);
        result.losses.push_back(taken.loss);
        result.norms.push_back(taken.grad_norm);
      };
      for (std::int64_t step = 1; step <= steps; ++step) {
        if (poison) rank.poison_gradients();
        const std::uint64_t before = host_waits(*device);
        ASSERT_TRUE(rank.step().enqueue(step, false));
        result.replayed.push_back(rank.step().replayed());
        if (step > 1) result.waits += host_waits(*device) - before;
        while (rank.step().pending() > rank.step().results_late()) take();
      }
      EXPECT_EQ(rank.step().pending(), device->kind() == DeviceKind::gpu ? 1 : 0);
      while (rank.step().pending() > 0) take();
      result.weights = rank.weights();
    });
    return result;
  }
  static std::shared_ptr<Device> gpu(bool deterministic = false) { return create_gpu_device(0, {.deterministic = deterministic}); }
};

TEST_F(GpuTrainingStep, OnlyEnqueuesAndAgreesWithTheCpu) {
  Training training;
  training.micro_batch = 4;
  const Numbers want = run(training, create_cpu_device(), 8), got = run(training, gpu(), 8);
  EXPECT_EQ(got.waits, 0u);
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5) << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-4 * want.norms[i]) << i;
  }
}

TEST_F(GpuTrainingStep, DeterministicMeansTheSameBitsTwice) {
  Training training;
  training.micro_batch = 4;
  for (const auto& [compute, gradient] : precisions) {
    training.compute = compute, training.gradient = gradient;
    const Numbers first = run(training, gpu(true), 10), second = run(training, gpu(true), 10);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.norms, second.norms);
    EXPECT_EQ(first.weights, second.weights);
  }
}

TEST_F(GpuTrainingStep, GraphsGiveTheBitsOfStepsEnqueuedAnew) {
  Training training;
  training.micro_batch = 2;
  for (const auto& [compute, gradient] : precisions) {
    training.compute = compute, training.gradient = gradient;
    const Numbers graphs = run(training, gpu(true), 9), anew = run(training, gpu(true), 9, StepGraphs::never);
    EXPECT_EQ(graphs.losses, anew.losses);
    EXPECT_EQ(graphs.norms, anew.norms);
    EXPECT_EQ(graphs.weights, anew.weights);
    EXPECT_EQ(graphs.waits, 0u);
    for (std::size_t i = 0; i < 9; ++i) {
      EXPECT_EQ(graphs.replayed[i], i > 0) << i;
      EXPECT_FALSE(anew.replayed[i]) << i;
    }
  }
}

// Whoever is the first to add to a gradient writes it; a table of whole 64 rows takes part as it is, another as a padded copy.
TEST_F(GpuTrainingStep, DoesNotReadTheGradientsOfTheStepBefore) {
  ModelConfig aligned = small_llama();
  aligned.vocab_size = 64;
  for (const ModelConfig& model : {aligned, untied_llama(), small_gpt2(), small_qwen3()})
    for (const auto& [compute, gradient] : precisions) {
      const Training training{.model = model, .micro_batch = 4, .compute = compute, .gradient = gradient, .head_chunks = 2};
      const Numbers clean = run(training, gpu(true), 4), poisoned = run(training, gpu(true), 4, StepGraphs::where_possible, true);
      EXPECT_EQ(poisoned.losses, clean.losses) << model.architecture;
      EXPECT_EQ(poisoned.norms, clean.norms) << model.architecture;
      EXPECT_EQ(poisoned.weights, clean.weights) << model.architecture;
    }
}

TEST_F(GpuTrainingStep, OffloadedStatesGiveTheSameBits) {
  Training training;
  training.compute = DType::bf16;
  const Numbers here = run(training, gpu(true), 6);
  training.offload = true;
  const Numbers away = run(training, gpu(true), 6);
  EXPECT_EQ(away.losses, here.losses);
  EXPECT_EQ(away.weights, here.weights);
  EXPECT_EQ(away.waits, 0u);
}

// A rate that throws the weights far away: the next step's numbers are bad, and are known when another step is under way.
TEST_F(GpuTrainingStep, BadNumbersChangeNoWeights) {
  for (const auto& device : {std::shared_ptr<Device>(gpu()), std::shared_ptr<Device>(create_cpu_device())})
    run_ranks(1, [&](World& world) {
      OneRank rank(world, {}, device, {LrScheduleKind::constant, 1e30, 0, 0, 100, 0.1});
      ASSERT_TRUE(rank.step().run(1, false));
      const Parameters before = rank.weights();
      ASSERT_TRUE(rank.step().enqueue(2, false));
      if (rank.step().results_late() > 0) {
        ASSERT_TRUE(rank.step().enqueue(3, false));
      }
      try {
        rank.step().take();
        FAIL() << "the numbers were good";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_numbers);
        EXPECT_NE(std::string(error.what()).find("model."), std::string::npos) << error.what();
      }
      EXPECT_EQ(rank.weights(), before);
    });
}

}  // namespace
}  // namespace baleen::testing
