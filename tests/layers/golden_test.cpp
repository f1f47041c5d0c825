// Every layer, forward and both halves of backward, against PyTorch in float64 (tests/golden/make_models.py).
#include <gtest/gtest.h>

#include <limits>

#include "layers/embedding.h"
#include "layers/head_loss.h"
#include "layers/transformer_block.h"
#include "model/family.h"
#include "model/rope_table.h"
#include "support/golden.h"

namespace baleen {
namespace {

using testing::elements;
using testing::expect_near;
using testing::Golden;

// The sizes of make_layers() in make_models.py.
ModelConfig golden_config() {
  ModelConfig config;
  config.hidden_size = 20;
  config.intermediate_size = 36;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.vocab_size = 19;
  config.max_position_embeddings = 13;
  config.rope_theta = 500;
  config.rms_norm_eps = 1e-5;
  return config;
}

constexpr std::int64_t batch = 2, length = 13, tokens = batch * length, width = 20;

class LayerGolden : public ::testing::Test {
 protected:
  LayerGolden()
      : units(*device, model_units(config), 1, StorageKind::training),
        memory(device->allocate("scratch", std::size_t{8} << 20)),
        saved_memory(device->allocate("activations", std::size_t{8} << 20)),
        table(make_rope_table(config, length)) {
    scratch.bind(memory.data(), memory.bytes());
    saved.bind(saved_memory.data(), saved_memory.bytes());
    // Whatever a layer does not write is a NaN in the result.
    for (const Buffer* buffer : {&memory, &saved_memory})
      std::fill_n(buffer->as<float>(), buffer->bytes() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
    for (const ParameterId id : units.parameters()) {
      const std::vector<float> values = golden.floats("weights." + units.parameter(id).name);
      std::copy(values.begin(), values.end(), units.weight(id).as<float>());
    }
    sequences.batch = batch;
    sequences.length = length;
    for (std::int64_t i = 0; i < tokens; ++i) positions.push_back(static_cast<std::int32_t>(i % length));
    sequences.positions = Tensor(positions.data(), DType::i32, {tokens});
    sequences.cosines = Tensor(table.cosines.data(), DType::f32, {length, config.head_dim / 2});
    sequences.sines = Tensor(table.sines.data(), DType::f32, {length, config.head_dim / 2});
    x = golden.floats("x");
    d_out = golden.floats("d_out");
    result.assign(x.size(), std::numeric_limits<float>::quiet_NaN());
  }

  Tensor view(std::vector<float>& values) { return Tensor(values.data(), DType::f32, {tokens, width}); }
  ParameterId id(const std::string& name) const { return units.find("model.layers.0." + name + ".weight"); }
  Attention make_attention() const {
    return {dimensions, Linear(units, {id("self_attn.q_proj"), id("self_attn.k_proj"), id("self_attn.v_proj")}),
            Linear(units, {id("self_attn.o_proj")}),
            /*rotary=*/true};
  }
  Mlp make_mlp() const {
    return {Activation::swiglu, Linear(units, {id("mlp.gate_proj"), id("mlp.up_proj")}), Linear(units, {id("mlp.down_proj")})};
  }
  void expect_values(const Tensor& value, const std::string& name) { expect_near(elements(value), golden.floats(name), name); }
  // Every weight gradient that the golden layer has.
  void expect_gradients(const std::string& layer) {
    int compared = 0;
    for (const ParameterId parameter : units.parameters()) {
      const std::string name = layer + ".d." + units.parameter(parameter).name;
      if (!golden.has(name)) continue;
      expect_near(elements(units.gradient(parameter)), golden.floats(name), name);
      ++compared;
    }
    EXPECT_GT(compared, 0);
  }

  const ModelConfig config = golden_config();
  const AttentionDimensions dimensions{6, 2, 6};
  Golden golden{"layers"};
  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<Stream> stream = device->create_stream();
  UnitStorage units;
  Buffer memory, saved_memory;
  Arena scratch, saved;
  ops::Context context{*stream, scratch};
  LayerContext layers{context, units, saved};
  RopeTable table;
  Sequences sequences;
  std::vector<std::int32_t> positions;
  std::vector<float> x, d_out, result;
};

TEST_F(LayerGolden, Norm) {
  const Norm norm(id("input_layernorm"), 1e-5f);
  const Norm::Saved forward = norm.forward(layers, {view(x), Tensor()});
  expect_values(forward.out, "norm.y");
  norm.backward_input(layers, forward, view(result), view(d_out), Tensor());
  expect_values(view(result), "norm.d_x");
  norm.backward_weight(layers, forward, view(d_out));
  expect_gradients("norm");
}

TEST_F(LayerGolden, Attention) {
  const Attention attention = make_attention();
  const Attention::Saved forward = attention.forward(layers, sequences, view(result), view(x));
  expect_values(view(result), "attention.y");
  Attention::Gradients gradients;
  gradients.d_out = view(d_out);
  std::vector<float> d_x(result.size());
  attention.backward_input(layers, sequences, forward, gradients, view(d_x), /*together=*/false);
  expect_values(view(d_x), "attention.d_x");
  attention.backward_weight(layers, forward, gradients, view(x));
  expect_gradients("attention");
}

TEST_F(LayerGolden, Mlp) {
  const Mlp mlp = make_mlp();
  const Mlp::Saved forward = mlp.forward(layers, view(result), view(x));
  expect_values(view(result), "mlp.y");
  Mlp::Gradients gradients;
  gradients.d_out = view(d_out);
  std::vector<float> d_x(result.size());
  mlp.backward_input(layers, forward, gradients, view(d_x));
  expect_values(view(d_x), "mlp.d_x");
  mlp.backward_weight(layers, forward, gradients, view(x));
  expect_gradients("mlp");
}

TEST_F(LayerGolden, Block) {
  const TransformerBlock block(Norm(id("input_layernorm"), 1e-5f), make_attention(), Norm(id("post_attention_layernorm"), 1e-5f),
                               make_mlp());
  std::vector<float> attention_delta(x.size()), mlp_delta(x.size()), d_x(x.size());
  ResidualStream residual{view(x), Tensor()};
  const TransformerBlock::Saved forward = block.forward(layers, sequences, {view(attention_delta), view(mlp_delta), Tensor()}, residual);
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = elements(residual.residual)[i] + elements(residual.delta)[i];
  expect_values(view(result), "block.y");
  const auto gradients = block.backward_input(layers, sequences, forward, view(d_x), view(d_out));
  expect_values(view(d_x), "block.d_x");
  block.backward_weight(layers, forward, gradients);
  expect_gradients("block");
}

TEST_F(LayerGolden, Embedding) {
  const Embedding embedding(units.find("model.embed_tokens.weight"));
  std::vector<std::int32_t> ids = golden.ints("ids");
  const Tensor id_tensor(ids.data(), DType::i32, {tokens});
  embedding.forward(layers, sequences, view(result), id_tensor);
  expect_values(view(result), "embedding.y");
  embedding.backward_weight(layers, sequences, view(d_out), id_tensor);
  expect_gradients("embedding");
}

TEST_F(LayerGolden, HeadLossWholeAndInHalves) {
  const HeadLoss head(units, units.find("lm_head.weight"));
  std::vector<std::int32_t> targets = golden.ints("targets");
  const Tensor target_tensor(targets.data(), DType::i32, {tokens});
  const double valid = static_cast<double>(tokens - 5);
  float scale = static_cast<float>(1 / valid);
  double loss = 0;
  const Tensor loss_sum(&loss, DType::f64, {1}), gradient_scale(&scale, DType::f32, {1});
  head.loss(layers, loss_sum, view(x), target_tensor);
  EXPECT_NEAR(loss / valid, golden.doubles("head.loss")[0], 1e-6);

  head.loss_and_backward(layers, loss_sum, view(result), view(x), target_tensor, gradient_scale, BackwardHalves{});
  EXPECT_NEAR(loss / valid, 2 * golden.doubles("head.loss")[0], 2e-6);
  expect_values(view(result), "head.d_x");
  expect_gradients("head");

  // The halves apart, as a zero-bubble pipeline runs them, have the same bits.
  const std::vector<float> d_weight(elements(units.gradient(units.find("lm_head.weight"))).begin(),
                                    elements(units.gradient(units.find("lm_head.weight"))).end());
  units.zero_gradients(*stream);
  std::vector<float> d_x(x.size());
  head.loss_and_backward(layers, loss_sum, view(d_x), view(x), target_tensor, gradient_scale, {true, false});
  head.loss_and_backward(layers, loss_sum, Tensor(), view(x), target_tensor, gradient_scale, {false, true});
  EXPECT_EQ(d_x, result);
  const auto apart = elements(units.gradient(units.find("lm_head.weight")));
  EXPECT_TRUE(std::equal(apart.begin(), apart.end(), d_weight.begin()));
}

}  // namespace
}  // namespace baleen
