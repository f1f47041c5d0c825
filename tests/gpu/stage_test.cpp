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

ModelConfig make_config(std::int64_t layers, std::int64_t width, std::int64_t ff, std::int64_t heads, std::int64_t kv_heads,
                        std::int64_t head_dim, std::int64_t vocabulary, bool tied) {
  ModelConfig config;
  config.num_hidden_layers = layers;
  config.hidden_size = width;
  config.intermediate_size = ff;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.vocab_size = vocabulary;
  config.max_position_embeddings = 4096;
  config.rope_theta = 10000;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = tied;
  return config;
}

// A whole training step of a model on one device. Everything that changes from step to step lies in device memory.
class Model {
 public:
  Model(Side& side, const ModelConfig& config, std::int64_t batch, std::int64_t length, const std::vector<Floats>& weights,
        const std::vector<std::int32_t>& ids, const std::vector<std::int32_t>& targets)
      : side_(side), units_(side.device(), model_units(config), 1, StorageKind::training), stage_(config, units_) {
    const std::int64_t tokens = batch * length, half = config.head_dim / 2;
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
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Tensor weight = units_.weight(units_.parameters()[i]);
      side.write(weight.data(), weights[i].data(), weight.bytes());
    }
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
    const Floats scalars{1e-3f * static_cast<float>(step), 1.0f - std::pow(0.9f, static_cast<float>(step)),
                         1.0f - std::pow(0.95f, static_cast<float>(step)), 1.0f};
    side_.write(scalars_.data(), scalars.data(), scalars_.bytes());
  }
  void enqueue_step() {
    ops::Context context{side_.stream(), scratch_};
    enqueue_step(context, saved_);
  }
  // Loss, squared gradient norm, gradients, weights.
  std::vector<Floats> results() {
    std::vector<Floats> all{{static_cast<float>(side_.get<double>(loss_)[0])}, {static_cast<float>(side_.get<double>(squares_)[0])}};
    for (const ParameterId id : units_.parameters()) {
      all.push_back(side_.get(units_.gradient(id)));
      all.push_back(side_.get(units_.weight(id)));
    }
    return all;
  }

 private:
  void enqueue_step(ops::Context& context, Arena& saved) {
    const LayerContext layers{context, units_, saved};
    const Arena::Scope scope(saved);
    units_.zero_gradients(context.stream);
    context.stream.fill_zero(loss_.data(), loss_.bytes());
    context.stream.fill_zero(squares_.data(), squares_.bytes());
    const Stage::Saved forward = stage_.forward(layers, batch_);
    stage_.loss_and_backward(layers, batch_, forward, loss_, gradient_scale_, [](int) {});
    for (int unit = 0; unit < units_.units(); ++unit) ops::sum_of_squares(context, squares_, units_.flat_gradients(unit));
    for (const ParameterId id : units_.parameters()) {
      const std::int64_t count = units_.parameter(id).elements();
      ops::adamw(context,
                 {units_.weight(id).reshape({count}), Tensor(), units_.gradient(id).reshape({count}), units_.exp_avg(id).reshape({count}),
                  units_.exp_avg_sq(id).reshape({count})},
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
  void run(const ModelConfig& config, std::int64_t batch, std::int64_t length) {
    std::vector<Floats> weights;
    for (const UnitDescription& unit : model_units(config))
      for (const ParameterDescription& parameter : unit.parameters) {
        weights.push_back(random(parameter.elements(), parameter.shape.size() == 1 ? 0.1f : 0.05f));
        if (parameter.shape.size() == 1)
          for (float& value : weights.back()) value += 1.0f;
      }
    const auto ids = random_indices(batch * length, config.vocab_size);
    auto targets = random_indices(batch * length, config.vocab_size);
    targets[0] = -100;
    Model reference(*cpu, config, batch, length, weights, ids, targets), eager(*gpu, config, batch, length, weights, ids, targets),
        replayed(*gpu, config, batch, length, weights, ids, targets);

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
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_LE(ops::testing::relative_error({got[i].begin(), got[i].end()}, {want[i].begin(), want[i].end()}), ops::testing::fp32_bound)
            << "step " << step << ", result " << i << ", seed " << seed;
      EXPECT_EQ(replayed.results(), got) << "step " << step << ": the graph has other bits than the eager run";
    }
    report("eager", [&] { eager.enqueue_step(); });
    report("graph", [&] { graph->replay(gpu->stream()); });
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
  run(make_config(1, 20, 36, 6, 2, 6, 19, false), 2, 13);
}
TEST_F(GpuStage, OneBlockAsModelsHaveThem) {
  run(make_config(1, 512, 1408, 8, 2, 64, 257, true), 2, 200);
}
TEST_F(GpuStage, FourBlocks) {
  run(make_config(4, 256, 680, 4, 4, 64, 1003, false), 3, 127);
}

}  // namespace
}  // namespace baleen::testing
