// Recomputing changes no bit of losses and gradients, and what stays saved is what docs/numerics.md says, to the byte.
#include <gtest/gtest.h>

#include <limits>

#include "model/family.h"
#include "model/rope_table.h"
#include "model/stage.h"

namespace baleen {
namespace {

constexpr std::int64_t batch = 2, length = 24, tokens = batch * length;

ModelConfig small(const char* architecture) {
  ModelConfig config = default_model(architecture, "");
  config.hidden_size = 40;
  config.intermediate_size = 72;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 6;
  config.num_key_value_heads = config.is_gpt2() ? 6 : 2;
  config.head_dim = config.is_gpt2() ? 8 : 10;
  if (config.is_gpt2()) config.hidden_size = 48;
  config.vocab_size = 53;
  config.max_position_embeddings = length;
  return config;
}

// A stage with its memory: measured by a dry run, then bound to exactly that.
class MeasuredStage {
 public:
  MeasuredStage(const ModelConfig& config, DType dtype, Recompute recompute)
      : units_(*device_, model_units(config), {.compute = dtype}),
        stage_(config, units_, recompute),
        table_(make_rope_table(config, length)) {
    units_.initialize_weights(7);
    for (std::int32_t i = 0; i < tokens; ++i) {
      positions_.push_back(i % static_cast<std::int32_t>(length));
      ids_.push_back(i * 7 % 53);
      targets_.push_back(i * 11 % 53);
    }
    const auto ints = [](std::vector<std::int32_t>& values) { return Tensor(values.data(), DType::i32, {tokens}); };
    batch_ = {Sequences{batch, length, ints(positions_), Tensor(table_.cosines.data(), DType::f32, {length, config.head_dim / 2}),
                        Tensor(table_.sines.data(), DType::f32, {length, config.head_dim / 2}), Tensor()},
              ints(ids_), ints(targets_)};
    Arena scratch, saved;
    pass(*device_->create_measuring_stream(), scratch, saved);
    saved_peak = saved.peak();
    scratch_peak = scratch.peak();
  }

  // Loss and all gradients, from memory that is NaN.
  std::vector<float> gradients() {
    const Buffer scratch_memory = device_->allocate("scratch", scratch_peak), saved_memory = device_->allocate("saved", saved_peak);
    for (const Buffer* buffer : {&scratch_memory, &saved_memory})
      std::fill_n(buffer->as<float>(), buffer->bytes() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
    Arena scratch, saved;
    scratch.bind(scratch_memory.data(), scratch_memory.bytes());
    saved.bind(saved_memory.data(), saved_memory.bytes());
    units_.zero_gradients(*stream_);
    loss_ = 0;
    pass(*stream_, scratch, saved);
    std::vector<float> all{static_cast<float>(loss_)};
    for (int unit = 0; unit < units_.units(); ++unit) {
      const Tensor flat = units_.flat_gradients(unit);
      all.insert(all.end(), flat.as<float>(), flat.as<float>() + flat.elements());
    }
    return all;
  }

  std::size_t saved_peak = 0, scratch_peak = 0;

 private:
  void pass(Stream& stream, Arena& scratch, Arena& saved) {
    ops::Context context{stream, scratch};
    const LayerContext layers{context, units_, saved};
    WholeUnits access;
    const Stage::Saved forward = stage_.forward(layers, batch_, access);
    stage_.backward(layers, batch_, forward, {Tensor(&loss_, DType::f64, {1}), Tensor(&scale_, DType::f32, {1})}, access);
  }

  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_stream();
  UnitStorage units_;
  Stage stage_;
  RopeTable table_;
  std::vector<std::int32_t> positions_, ids_, targets_;
  MicroBatch batch_;
  double loss_ = 0;
  float scale_ = 1.0f / tokens;
};

// The table of docs/numerics.md.
std::size_t saved_bytes(const ModelConfig& config, DType dtype, Recompute recompute) {
  const auto bytes = [](std::int64_t columns, std::size_t element_bytes) {
    const std::size_t exact = static_cast<std::size_t>(tokens * columns) * element_bytes;
    return (exact + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
  };
  const auto wide = [&](std::int64_t columns) { return bytes(columns, dtype_bytes(dtype)); };
  const auto fp32 = [&](std::int64_t columns) { return bytes(columns, sizeof(float)); };
  const std::int64_t c = config.hidden_size, f = config.intermediate_size, h = config.num_attention_heads, kv = config.num_key_value_heads,
                     d = config.head_dim;
  const std::size_t stream = wide(c), statistics = config.is_gpt2() ? 2 * fp32(1) : fp32(1);
  std::size_t attention = wide((h + 2 * kv) * d) + wide(h * d) + fp32(h);
  if (config.has_qk_norm()) attention += wide(h * d) + wide(kv * d) + fp32(h) + fp32(kv);
  const std::size_t mlp = wide(config.is_gpt2() ? f : 2 * f) + wide(f);
  std::size_t block = stream;
  if (recompute != Recompute::full) block += 2 * statistics + attention + stream;
  if (recompute == Recompute::none) block += 2 * stream + mlp;
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  // The first block's input is the embedding's output; behind the last block comes the final norm.
  return layers * block + stream + statistics + stream;
}

class Recomputing : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, Recomputing, ::testing::Values("llama", "qwen2", "qwen3", "gpt2"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(Recomputing, ChangesNoBitAndSavesWhatTheTableSays) {
  const ModelConfig config = small(GetParam());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    MeasuredStage none(config, dtype, Recompute::none);
    const std::vector<float> want = none.gradients();
    EXPECT_EQ(none.saved_peak, saved_bytes(config, dtype, Recompute::none));
    std::size_t before = none.saved_peak;
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      MeasuredStage run(config, dtype, recompute);
      EXPECT_EQ(run.gradients(), want) << dtype_name(dtype) << ' ' << static_cast<int>(recompute);
      EXPECT_EQ(run.saved_peak, saved_bytes(config, dtype, recompute)) << dtype_name(dtype) << ' ' << static_cast<int>(recompute);
      EXPECT_LT(run.saved_peak, before);
      before = run.saved_peak;
    }
  }
}

// What is saved no more is there once for one block instead of once for each.
TEST(RecomputeMemory, AllMemoryOfADeepModelFalls) {
  ModelConfig config = small("llama");
  config.num_hidden_layers = 16;
  std::size_t before = std::numeric_limits<std::size_t>::max();
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    const MeasuredStage run(config, DType::bf16, recompute);
    EXPECT_LT(run.saved_peak + run.scratch_peak, before / 4 * 3);
    before = run.saved_peak + run.scratch_peak;
  }
}

}  // namespace
}  // namespace baleen
