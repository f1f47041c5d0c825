// A whole small Llama against PyTorch in float64: loss, every gradient, twenty AdamW steps (tests/golden/make_llama.py).
#include <gtest/gtest.h>

#include "comm/connect.h"
#include "model/rope_table.h"
#include "optim/global_norm.h"
#include "support/golden.h"
#include "train/step.h"

namespace baleen {
namespace {

using testing::elements;
using testing::expect_near;
using testing::Golden;

struct Case {
  const char* name;
  std::int64_t batch, length, heads, kv_heads, head_dim;
  double theta;
  bool tied;
  RopeScaling scaling;
};

void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

// The same batch at every step.
class FixedBatch : public BatchSource {
 public:
  FixedBatch(const Golden& golden, std::int64_t batch, std::int64_t length)
      : ids_(golden.ints("ids")), targets_(golden.ints("targets")), batch_(batch), length_(length) {}
  void fill(std::uint64_t, std::int64_t first, std::int64_t count, std::int32_t* inputs, std::int32_t* targets) const override {
    std::copy_n(ids_.begin() + first * length_, count * length_, inputs);
    std::copy_n(targets_.begin() + first * length_, count * length_, targets);
  }
  std::int64_t sequence_length() const override { return length_; }
  std::int64_t global_batch_size() const override { return batch_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::vector<std::int32_t>& targets() const { return targets_; }

 private:
  std::vector<std::int32_t> ids_, targets_;
  std::int64_t batch_, length_;
};

class LlamaGolden : public ::testing::TestWithParam<Case> {
 protected:
  ModelConfig config() const {
    ModelConfig config;
    config.hidden_size = 24;
    config.intermediate_size = 40;
    config.num_hidden_layers = 2;
    config.num_attention_heads = GetParam().heads;
    config.num_key_value_heads = GetParam().kv_heads;
    config.head_dim = GetParam().head_dim;
    config.vocab_size = 37;
    config.max_position_embeddings = GetParam().length;
    config.rope_theta = GetParam().theta;
    config.rope_scaling = GetParam().scaling;
    config.tie_word_embeddings = GetParam().tied;
    return config;
  }
  void load_weights(Engine& engine) const {
    for (const ParameterId id : engine.units().parameters()) {
      const std::vector<float> values = golden.floats("weights." + engine.units().parameter(id).name);
      std::copy(values.begin(), values.end(), engine.units().weight(id).as<float>());
    }
  }

  Golden golden{std::string("llama_") + GetParam().name};
  std::unique_ptr<World> world = connect_world(RankEnvironment{}, std::chrono::seconds(10));
  std::unique_ptr<Communicator> axis = world->create_communicator({0}, "dp");
};

TEST_P(LlamaGolden, LossAndGradients) {
  for (const std::int64_t micro_batch : {GetParam().batch, std::int64_t{1}}) {
    Engine engine({config(), micro_batch, GetParam().length, 1, StorageKind::training, ReduceOp::sum}, *axis);
    load_weights(engine);
    const FixedBatch batch(golden, GetParam().batch, GetParam().length);
    const auto valid = static_cast<double>(count_valid(batch.targets()));
    const HostBatch host{batch.ids(), batch.targets(), GetParam().batch};
    const double expected = golden.doubles("loss")[0];
    EXPECT_NEAR(engine.loss(host) / valid, expected, 1e-6 * expected);
    EXPECT_NEAR(engine.gradients(host, valid) / valid, expected, 1e-6 * expected);

    double whole = 0;  // ‖g‖² of the whole model
    for (const ParameterId id : engine.units().parameters()) {
      const double part = testing::norm(golden.floats("d." + engine.units().parameter(id).name));
      whole += part * part;
    }
    for (const ParameterId id : engine.units().parameters())
      expect_near(elements(engine.units().gradient(id)), golden.floats("d." + engine.units().parameter(id).name), engine.units().parameter(id).name, 1e-5,
                  1e-8 * std::sqrt(whole));
  }
}

TEST_P(LlamaGolden, TwentyAdamWSteps) {
  Engine engine({config(), 1, GetParam().length, 1, StorageKind::training, ReduceOp::sum}, *axis);
  load_weights(engine);
  AdamWOptimizer optimizer({}, engine.device(), engine.units());
  const FixedBatch batch(golden, GetParam().batch, GetParam().length);
  TrainingStep step(engine, optimizer, batch, LrSchedule{LrScheduleKind::constant, 1e-2, 0, 0, 20, 0.1}, 1.0);
  const std::vector<double> losses = golden.doubles("adamw.losses"), norms = golden.doubles("adamw.norms");
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto result = step.run(static_cast<std::int64_t>(i) + 1, false);
    ASSERT_TRUE(result.has_value());
    EXPECT_NEAR(result->loss, losses[i], 1e-5) << "step " << i + 1;
    EXPECT_NEAR(result->grad_norm, norms[i], 1e-4 * norms[i]) << "step " << i + 1;
  }
  EXPECT_LT(losses.back(), 0.7 * losses.front());  // the case trains
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaGolden,
                         ::testing::Values(Case{"tied", 4, 16, 4, 2, 6, 10000, true, {}},
                                           Case{"llama3_rope", 2, 21, 3, 1, 10, 500000, false, {"llama3", 8, 1, 4, 24}},
                                           Case{"linear_rope", 2, 11, 4, 4, 6, 10000, false, {"linear", 4, 1, 4, 8192}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace baleen
