// The model's own code on the GPU: forward, backward and the optimizer's step, eager and as one replayed graph, equal to the CPU.
#include <chrono>
#include <iostream>

#include "gpu/support.h"
#include "model/family.h"
#include "model/rope_table.h"
#include "model/stage.h"
#include "ops/adamw.h"

namespace baleen::testing {
namespace {

constexpr int steps = 3;

struct Sizes {
  std::int64_t layers, width, ff, heads, kv_heads, head_dim, vocabulary;
  bool tied;
};

// A published model's kind in other sizes.
ModelConfig make_config(const char* preset, const Sizes& sizes) {
  ModelConfig config = model_preset(preset, "tests/gpu");
  config.num_hidden_layers = sizes.layers;
  config.hidden_size = sizes.width;
  config.intermediate_size = sizes.ff;
  config.num_attention_heads = sizes.heads;
  config.num_key_value_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  config.vocab_size = sizes.vocabulary;
  config.tie_word_embeddings = sizes.tied;
  return config;
}

// A whole training step of a model on one device. Everything that changes from step to step lies in device memory.
class Model {
 public:
  Model(Side& side, const ModelConfig& config, std::int64_t batch, std::int64_t length, const std::vector<Floats>& weights,
        const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets, DType gradient)
      : side_(side),
        units_(side.device(), model_units(config), StorageOptions{.compute = side.precision, .gradient = gradient}),
        stage_(config, units_) {
    const std::int64_t tokens = batch * length, half = rope_columns(config);
    const RopeTable table = make_rope_table(config, length);
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<std::int32_t>(i % length));
    batch_.sequences = {
        batch,   length, side.put(positions, {tokens}), side.put(table.cosines, {length, half}), side.put(table.sines, {length, half}),
        Tensor()};
    batch_.ids = side.put(ids, {tokens});
    batch_.targets = side.put(targets, {tokens});
    loss_ = side.put(std::vector<double>{-1}, {1});
    squares_ = side.put(std::vector<double>{-1}, {1});
    gradient_scale_ = side.put(Floats{1.0f / static_cast<float>(tokens)}, {1});
    scalars_ = side.poisoned({ops::adamw_scalars});
    for (std::size_t i = 0; i < weights.size(); ++i) units_.store(units_.parameters()[i], {0, weights[i].size()}, weights[i].data());
    const auto measuring = side.device().create_measuring_stream();
    Arena scratch, saved;
    ops::Context dry{*measuring, scratch};
    enqueue_step(dry, saved);
    scratch_memory_ = side.poisoned_buffer("scratch", scratch.peak());
    saved_memory_ = side.poisoned_buffer("activations", saved.peak());
    scratch_.bind(scratch_memory_.data(), scratch_memory_.bytes());
    saved_.bind(saved_memory_.data(), saved_memory_.bytes());
  }

  void set_step(int step) {
    Floats scalars{1e-3f * static_cast<float>(step), 1.0f - std::pow(0.9f, static_cast<float>(step)),
                   1.0f - std::pow(0.95f, static_cast<float>(step)), 1.0f, static_cast<float>(step)};
    scalars.resize(ops::adamw_scalars);
    side_.write(scalars_.data(), scalars.data(), scalars_.bytes());
  }
  void enqueue_step() {
    ops::Context context{side_.stream(), scratch_};
    enqueue_step(context, saved_);
  }
  // Loss, squared gradient norm, then of each parameter the gradient and the master weights.
  std::vector<Floats> results() {
    std::vector<Floats> all{{static_cast<float>(side_.get<double>(loss_)[0])}, {static_cast<float>(side_.get<double>(squares_)[0])}};
    for (const ParameterId id : units_.parameters()) {
      all.push_back(side_.get_floats(units_.gradient(id)));
      all.push_back(side_.get(master(id)));
    }
    return all;
  }
  // The optimizer rounds the master into what the layers read.
  void expect_rounded_weights() {
    for (const ParameterId id : units_.parameters()) {
      Floats want = side_.get(master(id));
      for (float& value : want) value = to_float(to_bfloat16(value));
      EXPECT_EQ(side_.get_floats(units_.weight(id)), want) << units_.parameter(id).name;
    }
  }
  const std::string& name(std::size_t parameter) const { return units_.parameter(units_.parameters()[parameter]).name; }

 private:
  SliceRange whole(ParameterId id) const { return {0, static_cast<std::size_t>(units_.parameter(id).elements())}; }
  Tensor master(ParameterId id) const { return units_.of_updated(units_.master(id.unit), id, whole(id)); }
  void enqueue_step(ops::Context& context, Arena& saved) {
    const LayerContext layers{context, units_, saved};
    const Arena::Scope scope(saved);
    for (int unit = 0; unit < units_.units(); ++unit) units_.begin_gradients(unit, context.stream);
    context.stream.fill_zero(loss_.data(), loss_.bytes());
    context.stream.fill_zero(squares_.data(), squares_.bytes());
    WholeUnits access;
    const Stage::Saved forward = stage_.forward(layers, batch_, access);
    stage_.backward(layers, batch_, forward, {loss_, gradient_scale_}, access);
    for (int unit = 0; unit < units_.units(); ++unit) units_.complete_gradients(unit, context.stream);
    for (int unit = 0; unit < units_.units(); ++unit) ops::sum_of_squares(context, squares_, units_.flat_gradients(unit));
    for (const ParameterId id : units_.parameters()) {
      const std::int64_t count = units_.parameter(id).elements();
      ops::adamw(context,
                 {master(id), units_.has_separate_master() ? units_.weight(id).reshape({count}) : Tensor(),
                  units_.gradient(id).reshape({count}), units_.exp_avg(id).reshape({count}), units_.exp_avg_sq(id).reshape({count})},
                 scalars_, {0.9f, 0.95f, 1e-3f, 0.1f}, {});
    }
  }

  Side& side_;
  UnitStorage units_;
  Stage stage_;
  MicroBatch batch_;
  Tensor loss_, squares_, gradient_scale_, scalars_;
  Buffer scratch_memory_, saved_memory_;
  Arena scratch_, saved_;
};

class GpuStage : public OnBothDevices {
 protected:
  struct Inputs {
    std::vector<Floats> weights;
    std::vector<std::int32_t> ids, targets;
  };
  Inputs random_inputs(const ModelConfig& config, std::int64_t tokens, float deviation) {
    Inputs in;
    for (const UnitDescription& unit : model_units(config))
      for (const ParameterDescription& parameter : unit.parameters) {
        const bool norm = parameter.initializer == Initializer::ones;
        in.weights.push_back(random_rounded(parameter.elements(), parameter.shape.size() == 1 ? 0.1f : deviation));
        for (float& value : in.weights.back()) value = to_float(to_bfloat16(value + (norm ? 1.0f : 0.0f)));
      }
    in.ids = random_indices(tokens, config.vocab_size);
    in.targets = random_indices(tokens, config.vocab_size);
    in.targets[0] = -100;
    return in;
  }

  // Three steps eager and replayed against the CPU; `compare(step, want, got, model)` holds the results together.
  template <class Compare>
  void run(const ModelConfig& config, std::int64_t batch, std::int64_t length, float deviation, const Compare& compare) {
    const Inputs in = random_inputs(config, batch * length, deviation);
    Model reference(*cpu, config, batch, length, in.weights, in.ids, in.targets, DType::f32),
        eager(*gpu, config, batch, length, in.weights, in.ids, in.targets, gradient),
        replayed(*gpu, config, batch, length, in.weights, in.ids, in.targets, gradient);
    std::unique_ptr<Graph> graph;
    for (int step = 1; step <= steps; ++step) {
      for (Model* model : {&reference, &eager, &replayed}) model->set_step(step);
      reference.enqueue_step();
      eager.enqueue_step();
      gpu->stream().synchronize();
      if (graph == nullptr) graph = capture(gpu->stream(), [&] { replayed.enqueue_step(); });
      graph->replay(gpu->stream());
      gpu->stream().synchronize();
      const std::vector<Floats> want = reference.results(), got = eager.results();
      ASSERT_EQ(want.size(), got.size());
      compare(step, want, got, eager);
      EXPECT_EQ(replayed.results(), got) << "step " << step << ": the graph has other bits than the eager run";
    }
    report("eager", [&] { eager.enqueue_step(); });
    report("graph", [&] { graph->replay(gpu->stream()); });
  }
  void run(const ModelConfig& config, std::int64_t batch, std::int64_t length) {
    run(config, batch, length, 0.05f, [&](int step, const std::vector<Floats>& want, const std::vector<Floats>& got, Model&) {
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(distance(got[i], want[i]), ops::testing::fp32_bound * norm(want[i]) + zero_gradient * norm(want[2]))
            << "step " << step << ", result " << i << ", seed " << seed;
    });
  }
  // The first step, from the same weights: later ones follow a path of their own.
  void run_rounded(const ModelConfig& config, std::int64_t batch, std::int64_t length) {
    gpu = std::make_unique<Side>(create_gpu_device(0, {.deterministic = true}));
    gpu->precision = DType::bf16;
    run(config, batch, length, 0.02f, [&](int step, const std::vector<Floats>& want, const std::vector<Floats>& got, Model& model) {
      model.expect_rounded_weights();
      if (step > 1) return;
      EXPECT_NEAR(got[0][0], want[0][0], 1e-3 * std::abs(want[0][0])) << seed;
      EXPECT_NEAR(got[1][0], want[1][0], 1e-2 * want[1][0]) << seed;
      const double whole = std::sqrt(want[1][0]);
      for (std::size_t i = 2; i < want.size(); i += 2)
        EXPECT_LE(distance(got[i], want[i]), 3e-2 * norm(want[i]) + 1e-3 * whole) << model.name((i - 2) / 2) << ", seed " << seed;
    });
  }

  DType gradient = DType::f32;  // on the GPU

  // Gradients that are zero but for rounding (a key bias's) are held to the scale of the embedding's.
  static constexpr double zero_gradient = 1e-7;
  static double norm(const Floats& values) { return distance(values, Floats(values.size(), 0.0f)); }
  static double distance(const Floats& a, const Floats& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    return std::sqrt(sum);
  }

  template <class Step>
  void report(const char* name, const Step& step) {
    constexpr int repeats = 20;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) step();
    const auto enqueued = std::chrono::steady_clock::now();
    gpu->stream().synchronize();
    const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - begin, host = enqueued - begin;
    std::cout << "[ measured ] " << name << ": " << all.count() / repeats << " ms a step, " << host.count() / repeats
              << " ms of them to enqueue it\n";
  }
};

TEST_F(GpuStage, OneBlockOfOddSizes) {
  run(make_config("llama-30m", {1, 20, 36, 6, 2, 6, 19, false}), 2, 13);
}
TEST_F(GpuStage, OneBlockAsModelsHaveThem) {
  run(make_config("llama-30m", {1, 512, 1408, 8, 2, 64, 257, true}), 2, 200);
}
TEST_F(GpuStage, FourBlocks) {
  run(make_config("llama-30m", {4, 256, 680, 4, 4, 64, 1003, false}), 3, 127);
}
TEST_F(GpuStage, EveryFamily) {
  run(make_config("qwen2.5-0.5b", {2, 128, 344, 4, 2, 32, 509, true}), 2, 100);
  run(make_config("qwen3-0.6b", {2, 128, 344, 4, 2, 64, 509, true}), 2, 100);
  run(make_config("gpt2-124m", {2, 128, 512, 4, 4, 32, 509, true}), 2, 100);
}

TEST_F(GpuStage, RoundedOneBlockOfOddSizes) {
  for (const DType each : {DType::f32, DType::bf16}) {
    gradient = each;
    run_rounded(make_config("llama-30m", {1, 20, 36, 6, 2, 6, 19, false}), 2, 13);
  }
}
TEST_F(GpuStage, RoundedEveryFamilyWithGradientsOfHalves) {
  gradient = DType::bf16;
  run_rounded(make_config("llama-30m", {2, 512, 1408, 8, 2, 64, 1000, false}), 2, 200);
  run_rounded(make_config("qwen2.5-0.5b", {2, 896, 1200, 14, 2, 64, 1003, true}), 2, 128);
  run_rounded(make_config("gpt2-124m", {2, 384, 1536, 6, 6, 64, 509, true}), 2, 128);
}
TEST_F(GpuStage, RoundedEveryFamily) {
  run_rounded(make_config("llama-30m", {3, 512, 1408, 8, 2, 64, 1000, false}), 2, 200);
  run_rounded(make_config("qwen2.5-0.5b", {3, 896, 1200, 14, 2, 64, 1003, true}), 2, 128);
  run_rounded(make_config("qwen3-0.6b", {2, 256, 680, 4, 2, 128, 509, true}), 2, 100);
  run_rounded(make_config("gpt2-124m", {3, 384, 1536, 6, 6, 64, 509, true}), 2, 128);
}

}  // namespace
}  // namespace baleen::testing
