// A whole small model of each family against PyTorch in float64: loss, every gradient, twenty AdamW steps (tests/golden/make_models.py).
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
  const char* file;  // tests/golden/FILE.safetensors
  std::int64_t batch, length;
  ModelConfig config;
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.name;
}

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

class ModelGolden : public ::testing::TestWithParam<Case> {
 protected:
  const ModelConfig& config() const { return GetParam().config; }
  void load_weights(Engine& engine) const {
    for (const ParameterId id : engine.units().parameters()) {
      const std::vector<float> values = golden.floats("weights." + engine.units().parameter(id).name);
      engine.units().store(id, {0, values.size()}, values.data());
    }
  }

  Golden golden{GetParam().file};
  std::unique_ptr<World> world = connect_world(RankEnvironment{}, std::chrono::seconds(10));
  std::unique_ptr<Communicator> axis = world->create_communicator({0}, "dp");
};

TEST_P(ModelGolden, LossAndGradients) {
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
      expect_near(elements(engine.units().gradient(id)), golden.floats("d." + engine.units().parameter(id).name),
                  engine.units().parameter(id).name, 1e-5, 1e-8 * std::sqrt(whole));
  }
}

// How far PyTorch's bf16 loss is from float64, relative, at most over all models: that of one may be near by chance, a mean over so few
// tokens.
double largest_error_of_a_loss();

// In bf16 nothing is farther from float64 than twice what PyTorch's bf16 is, which rounds in the same places, but for the sum of a product
// and its bias: processors that multiply bf16 round it once.
TEST_P(ModelGolden, LossAndGradientsInHalves) {
  for (const std::int64_t micro_batch : {GetParam().batch, std::int64_t{1}}) {
    Engine engine(
        {.model = config(), .micro_batch_size = micro_batch, .sequence_length = GetParam().length, .threads = 1, .compute = DType::bf16},
        *axis);
    load_weights(engine);
    const FixedBatch batch(golden, GetParam().batch, GetParam().length);
    const auto valid = static_cast<double>(count_valid(batch.targets()));
    const HostBatch host{batch.ids(), batch.targets(), GetParam().batch};
    const double expected = golden.doubles("loss")[0], allowed = 2 * largest_error_of_a_loss() * expected;
    EXPECT_NEAR(engine.loss(host) / valid, expected, allowed);
    EXPECT_NEAR(engine.gradients(host, valid) / valid, expected, allowed);
    double whole = 0, largest = 0;
    for (const ParameterId id : engine.units().parameters())
      whole = std::hypot(whole, testing::norm(golden.floats("d." + engine.units().parameter(id).name)));
    for (const ParameterId id : engine.units().parameters()) {
      const std::string& name = engine.units().parameter(id).name;
      const double error = testing::distance(elements(engine.units().gradient(id)), golden.floats("d." + name));
      const double reference = golden.doubles("bf16.error." + name)[0];
      EXPECT_TRUE(error <= 2 * reference + 1e-8 * whole) << name << ": error " << error << ", PyTorch's " << reference;
      largest = std::max(largest, error / reference);
    }
    EXPECT_GT(largest, 0.1);  // it was bf16
  }
}

TEST_P(ModelGolden, TwentyAdamWSteps) {
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

// The sizes of make_models.py.
ModelConfig sized(const char* architecture, std::int64_t hidden, std::int64_t intermediate, std::int64_t heads, std::int64_t kv_heads,
                  std::int64_t head_dim, bool tied) {
  ModelConfig config = default_model(architecture, "");
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.vocab_size = 37;
  config.max_position_embeddings = 21;
  config.tie_word_embeddings = tied;
  return config;
}

ModelConfig with_rope(ModelConfig config, double theta, const RopeScaling& scaling) {
  config.rope_theta = theta;
  config.rope_scaling = scaling;
  return config;
}

ModelConfig with_biases(ModelConfig config) {
  config.attention_bias = true;
  config.rms_norm_eps = 1e-6;
  return config;
}

ModelConfig gpt2(std::int64_t layers, bool tied) {
  ModelConfig config = sized("gpt2", 20, 44, 4, 4, 5, tied);
  config.num_hidden_layers = layers;
  config.max_position_embeddings = 16;
  return config;
}

const std::vector<Case> cases{
    {"LlamaTied", "llama_tied", 4, 16, sized("llama", 24, 40, 4, 2, 6, true)},
    {"LlamaLlama3Rope", "llama_llama3_rope", 2, 21, with_rope(sized("llama", 24, 40, 3, 1, 10, false), 500000, {"llama3", 8, 1, 4, 24})},
    {"LlamaLinearRope", "llama_linear_rope", 2, 11, with_rope(sized("llama", 24, 40, 4, 4, 6, false), 10000, {"linear", 4, 1, 4, 8192})},
    {"LlamaBiased", "llama_biased", 2, 9, with_biases(sized("llama", 20, 28, 3, 3, 6, true))},
    {"Mistral", "llama_tied", 4, 16, sized("mistral", 24, 40, 4, 2, 6, true)},
    {"Qwen2", "qwen2", 3, 13, sized("qwen2", 20, 28, 2, 1, 10, true)},
    {"Qwen3", "qwen3", 2, 17, sized("qwen3", 20, 28, 6, 2, 6, false)},
    {"Gpt2", "gpt2", 3, 13, gpt2(2, true)},
    {"Gpt2Untied", "gpt2_untied", 2, 16, gpt2(1, false)}};
INSTANTIATE_TEST_SUITE_P(Cases, ModelGolden, ::testing::ValuesIn(cases),
                         [](const auto& instance) { return std::string(instance.param.name); });

double largest_error_of_a_loss() {
  double largest = 0;
  for (const Case& one : cases) {
    const Golden golden(one.file);
    const double exact = golden.doubles("loss")[0];
    largest = std::max(largest, std::abs(golden.doubles("bf16.loss")[0] - exact) / exact);
  }
  return largest;
}

}  // namespace
}  // namespace baleen
