// The two halves of a block's backward pass one after the other give the gradients of both together, which may take less work.
#include <gtest/gtest.h>

#include <cmath>

#include "layers/transformer_block.h"
#include "model/family.h"
#include "model/rope_table.h"
#include "support/golden.h"

namespace baleen {
namespace {

constexpr std::int64_t batch = 2, length = 9, tokens = batch * length;

// Biases of whole alignments lie together; those of narrower heads do not.
class Halves : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static ModelConfig config(std::int64_t head_dim) {
    ModelConfig config = model_preset("qwen2.5-0.5b", "a test");
    config.hidden_size = 24;
    config.intermediate_size = 40;
    config.num_hidden_layers = 1;
    config.num_attention_heads = 4;
    config.num_key_value_heads = 2;
    config.head_dim = head_dim;
    config.vocab_size = 19;
    return config;
  }
  // Gradients of everything that the block has, flat.
  std::vector<float> gradients(bool together) {
    const ModelConfig model = config(GetParam());
    UnitStorage units(*device_, model_units(model), 1, StorageKind::training);
    units.initialize_weights(5);
    const Buffer memory = device_->allocate("scratch", std::size_t{8} << 20), kept = device_->allocate("saved", std::size_t{8} << 20);
    Arena scratch, saved;
    scratch.bind(memory.data(), memory.bytes());
    saved.bind(kept.data(), kept.bytes());
    ops::Context context{*stream_, scratch};
    const LayerContext layers{context, units, saved};
    RopeTable table = make_rope_table(model, length);
    std::vector<std::int32_t> positions;
    for (std::int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<std::int32_t>(i % length));
    Sequences sequences;
    sequences.batch = batch;
    sequences.length = length;
    sequences.positions = Tensor(positions.data(), DType::i32, {tokens});
    sequences.cosines = Tensor(table.cosines.data(), DType::f32, {length, GetParam() / 2});
    sequences.sines = Tensor(table.sines.data(), DType::f32, {length, GetParam() / 2});
    const auto values = [&](float scale) {
      std::vector<float> of(static_cast<std::size_t>(tokens * model.hidden_size));
      for (std::size_t i = 0; i < of.size(); ++i) of[i] = scale * std::sin(static_cast<float>(i * i % 1009));
      return of;
    };
    std::vector<float> x = values(1), d_out = values(0.5f), attention(x.size()), mlp(x.size()), d_in(x.size());
    const auto view = [&](std::vector<float>& of) { return Tensor(of.data(), DType::f32, {tokens, model.hidden_size}); };
    const auto id = [&](const std::string& name) { return units.find("model.layers.0." + name); };
    const auto projection = [&](const char* suffix) {
      std::vector<ParameterId> ids;
      for (const char* part : {"q_proj", "k_proj", "v_proj"}) ids.push_back(id("self_attn." + std::string(part) + suffix));
      return ids;
    };
    const TransformerBlock block(Norm(id("input_layernorm.weight"), 1e-5f),
                                 Attention({4, 2, GetParam()}, Linear(units, projection(".weight"), projection(".bias")),
                                           Linear(units, {id("self_attn.o_proj.weight")}), /*rotary=*/true),
                                 Norm(id("post_attention_layernorm.weight"), 1e-5f),
                                 Mlp(Activation::swiglu, Linear(units, {id("mlp.gate_proj.weight"), id("mlp.up_proj.weight")}),
                                     Linear(units, {id("mlp.down_proj.weight")})));
    ResidualStream stream{view(x), Tensor()};
    const auto forward = block.forward(layers, sequences, {view(attention), view(mlp), Tensor()}, stream);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch)  // onto nothing, and onto what is there
      if (together)
        block.backward(layers, sequences, forward, view(d_in), view(d_out));
      else
        block.backward_weight(layers, forward, block.backward_input(layers, sequences, forward, view(d_in), view(d_out)));
    std::vector<float> all = d_in;
    for (const ParameterId parameter : units.parameters())
      if (units.parameter(parameter).name.starts_with("model.layers.")) {
        const auto of = testing::elements(units.gradient(parameter));
        all.insert(all.end(), of.begin(), of.end());
      }
    return all;
  }

  std::unique_ptr<Device> device_ = create_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->create_stream();
};
INSTANTIATE_TEST_SUITE_P(HeadWidths, Halves, ::testing::Values(6, 64));

TEST_P(Halves, ApartAndTogetherGiveTheSameGradients) {
  const std::vector<float> apart = gradients(false), together = gradients(true);
  ASSERT_EQ(apart.size(), together.size());
  EXPECT_EQ(apart, together);
}

}  // namespace
}  // namespace baleen
