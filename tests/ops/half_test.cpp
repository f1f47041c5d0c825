// Every operation in bf16 against itself in fp32 on the same inputs: it computes in fp32 and rounds each result once.
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/attention_reference.h"
#include "ops/bias.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gelu.h"
#include "ops/head_norm.h"
#include "ops/layer_norm.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "ops/targets.h"

namespace baleen::ops::testing {
namespace {

// Values that bf16 holds exactly, in both dtypes.
struct Pair {
  Array wide;
  HalfArray half;
  Pair(std::uint64_t key, std::int64_t count, float scale = 1.0f) : half(Array::normal(key, count, scale)) { wide = half.floats(); }
};

// docs/numerics.md.
void expect_rounded(const HalfArray& got, const Array& want, const char* what) {
  const double error = relative_error(got.floats(), want.doubles());
  EXPECT_LE(error, 1e-2) << what;
  EXPECT_LE(error, 1.5 * relative_error(HalfArray(want).floats(), want.doubles())) << what;
}
void expect_near(const Array& got, const Array& want, const char* what) {
  EXPECT_LE(relative_error(got, want.doubles()), fp32_bound) << what;
}

// With the best instructions of this processor and with those that every one has.
class InHalves : public ::testing::TestWithParam<bool> {
 protected:
  InstructionsScope instructions{GetParam()};
  ThreadsScope threads{2};
};
INSTANTIATE_TEST_SUITE_P(Instructions, InHalves, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "Portable" : "Best"; });

constexpr std::int64_t rows = 37, columns = 139;

TEST_P(InHalves, RmsNorm) {
  const std::initializer_list<std::int64_t> shape{rows, columns};
  Pair x(1, rows * columns), delta(2, rows * columns), weight(3, columns), d_out(4, rows * columns), d_residual(5, rows * columns);
  HalfArray residual(x.half.size()), out(residual), d_x(residual);
  Array want_residual(x.half.size()), want_out(want_residual), want_d_x(want_residual), rstd(rows), want_rstd(rows);
  Array d_weight(columns, 0.5f), want_d_weight(columns, 0.5f), unused(x.half.size());
  cpu::rms_norm_forward(out.tensor(shape), residual.tensor(shape), rstd.flat(), x.half.tensor(shape), delta.half.tensor(shape),
                        weight.half.flat(), 1e-5f);
  cpu::rms_norm_forward(unused.tensor(shape), want_residual.tensor(shape), want_rstd.flat(), x.wide.tensor(shape), delta.wide.tensor(shape),
                        weight.wide.flat(), 1e-5f);
  expect_rounded(residual, want_residual, "residual");
  Array kept = residual.floats();  // what is normalised is the residual that backward will see
  cpu::rms_norm_forward(want_out.tensor(shape), Tensor(), want_rstd.flat(), kept.tensor(shape), Tensor(), weight.wide.flat(), 1e-5f);
  expect_rounded(out, want_out, "out");
  expect_near(rstd, want_rstd, "rstd");
  cpu::rms_norm_backward_input(d_x.tensor(shape), d_out.half.tensor(shape), d_residual.half.tensor(shape), residual.tensor(shape),
                               rstd.flat(), weight.half.flat());
  cpu::rms_norm_backward_input(want_d_x.tensor(shape), d_out.wide.tensor(shape), d_residual.wide.tensor(shape), kept.tensor(shape),
                               rstd.flat(), weight.wide.flat());
  expect_rounded(d_x, want_d_x, "d_x");
  cpu::rms_norm_backward_weight(d_weight.flat(), d_out.half.tensor(shape), residual.tensor(shape), rstd.flat());
  cpu::rms_norm_backward_weight(want_d_weight.flat(), d_out.wide.tensor(shape), kept.tensor(shape), rstd.flat());
  expect_near(d_weight, want_d_weight, "d_weight");
}

TEST_P(InHalves, LayerNorm) {
  const std::initializer_list<std::int64_t> shape{rows, columns};
  Pair x(1, rows * columns), delta(2, rows * columns), weight(3, columns), bias(6, columns), d_out(4, rows * columns);
  HalfArray residual(x.half.size()), out(residual), d_x(residual);
  Array want_residual(x.half.size()), want_out(want_residual), want_d_x(want_residual), unused(want_residual);
  Array mean(rows), rstd(rows), want_mean(rows), want_rstd(rows);
  Array d_weight(columns, 0.5f), want_d_weight(columns, 0.5f), d_bias(columns, 0.5f), want_d_bias(columns, 0.5f);
  cpu::layer_norm_forward(out.tensor(shape), residual.tensor(shape), mean.flat(), rstd.flat(), x.half.tensor(shape),
                          delta.half.tensor(shape), weight.half.flat(), bias.half.flat(), 1e-5f);
  cpu::layer_norm_forward(unused.tensor(shape), want_residual.tensor(shape), want_mean.flat(), want_rstd.flat(), x.wide.tensor(shape),
                          delta.wide.tensor(shape), weight.wide.flat(), bias.wide.flat(), 1e-5f);
  expect_rounded(residual, want_residual, "residual");
  Array kept = residual.floats();
  cpu::layer_norm_forward(want_out.tensor(shape), Tensor(), want_mean.flat(), want_rstd.flat(), kept.tensor(shape), Tensor(),
                          weight.wide.flat(), bias.wide.flat(), 1e-5f);
  expect_rounded(out, want_out, "out");
  expect_near(mean, want_mean, "mean");
  expect_near(rstd, want_rstd, "rstd");
  cpu::layer_norm_backward_input(d_x.tensor(shape), d_out.half.tensor(shape), Tensor(), residual.tensor(shape), mean.flat(), rstd.flat(),
                                 weight.half.flat());
  cpu::layer_norm_backward_input(want_d_x.tensor(shape), d_out.wide.tensor(shape), Tensor(), kept.tensor(shape), mean.flat(), rstd.flat(),
                                 weight.wide.flat());
  expect_rounded(d_x, want_d_x, "d_x");
  cpu::layer_norm_backward_weight(d_weight.flat(), d_bias.flat(), d_out.half.tensor(shape), residual.tensor(shape), mean.flat(),
                                  rstd.flat());
  cpu::layer_norm_backward_weight(want_d_weight.flat(), want_d_bias.flat(), d_out.wide.tensor(shape), kept.tensor(shape), mean.flat(),
                                  rstd.flat());
  expect_near(d_weight, want_d_weight, "d_weight");
  expect_near(d_bias, want_d_bias, "d_bias");
}

// Three heads inside rows that are wider.
TEST_P(InHalves, HeadNormAndRope) {
  constexpr std::int64_t tokens = 9, heads = 3, width = 22, stride = heads * width + 5;
  Pair x(1, tokens * stride), weight(2, width), gradient(3, tokens * stride);
  const auto inside = [](auto& array) { return Tensor(array.flat().data(), array.flat().dtype(), {tokens, heads, width}); };
  HalfArray input(tokens * heads * width), d_out(input);
  Array want_input(tokens * heads * width), want_d_out(want_input), rstd(tokens * heads), want_rstd(tokens * heads);
  cpu::head_norm_forward(inside(x.half), stride, inside(input), rstd.flat(), weight.half.flat(), 1e-5f);
  cpu::head_norm_forward(inside(x.wide), stride, inside(want_input), want_rstd.flat(), weight.wide.flat(), 1e-5f);
  expect_rounded(x.half, x.wide, "normed");
  EXPECT_TRUE(input.floats().same_bits(want_input));
  expect_near(rstd, want_rstd, "rstd");
  cpu::head_norm_backward_input(inside(gradient.half), stride, inside(d_out), inside(input), rstd.flat(), weight.half.flat());
  cpu::head_norm_backward_input(inside(gradient.wide), stride, inside(want_d_out), inside(want_input), rstd.flat(), weight.wide.flat());
  expect_rounded(gradient.half, gradient.wide, "d_x");
  EXPECT_TRUE(d_out.floats().same_bits(want_d_out));

  Pair rotated(4, tokens * stride);
  Array cosines(tokens * width / 2), sines(tokens * width / 2);
  std::vector<std::int32_t> positions;
  for (std::int32_t i = 0; i < tokens; ++i) positions.push_back(i);
  for (std::int64_t i = 0; i < cosines.size(); ++i)
    cosines[i] = std::cos(static_cast<float>(i)), sines[i] = std::sin(static_cast<float>(i));
  for (const bool inverse : {false, true}) {
    const auto turn = [&](const Tensor& of) {
      cpu::rope(of, stride, cosines.tensor({tokens, width / 2}), sines.tensor({tokens, width / 2}),
                Tensor(positions.data(), DType::i32, {tokens}), inverse);
    };
    turn(inside(rotated.half));
    turn(inside(rotated.wide));
    expect_rounded(rotated.half, rotated.wide, "rotated");
    rotated.wide = rotated.half.floats();
  }
}

TEST_P(InHalves, Activations) {
  Pair gate_up(1, rows * 2 * columns, 2.0f), d_out(2, rows * columns);
  HalfArray out(rows * columns), d_gate_up(rows * 2 * columns);
  Array want(rows * columns), want_d(rows * 2 * columns);
  const std::initializer_list<std::int64_t> narrow{rows, columns}, wide{rows, 2 * columns};
  cpu::swiglu_forward(out.tensor(narrow), gate_up.half.tensor(wide));
  cpu::swiglu_forward(want.tensor(narrow), gate_up.wide.tensor(wide));
  expect_rounded(out, want, "swiglu");
  cpu::swiglu_backward(d_gate_up.tensor(wide), d_out.half.tensor(narrow), gate_up.half.tensor(wide));
  cpu::swiglu_backward(want_d.tensor(wide), d_out.wide.tensor(narrow), gate_up.wide.tensor(wide));
  expect_rounded(d_gate_up, want_d, "swiglu gradient");

  Pair x(3, rows * columns, 2.0f);
  HalfArray d_x(rows * columns);
  Array want_d_x(rows * columns);
  cpu::gelu_forward(out.flat(), x.half.flat());
  cpu::gelu_forward(want.flat(), x.wide.flat());
  expect_rounded(out, want, "gelu");
  cpu::gelu_backward(d_x.flat(), d_out.half.flat(), x.half.flat());
  cpu::gelu_backward(want_d_x.flat(), d_out.wide.flat(), x.wide.flat());
  expect_rounded(d_x, want_d_x, "gelu gradient");
}

TEST_P(InHalves, BiasAndEmbedding) {
  constexpr std::int64_t stride = columns + 3, vocabulary = 5;
  Pair y(1, rows * stride), bias(2, columns), d_out(3, rows * columns), table(4, vocabulary * columns);
  const auto inside = [](auto& array) { return Tensor(array.flat().data(), array.flat().dtype(), {rows, columns}); };
  Array d_bias(columns, 0.5f), want_d_bias(columns, 0.5f), d_table(vocabulary * columns, 0.5f), want_d_table(vocabulary * columns, 0.5f);
  cpu::bias_backward(d_bias.flat(), inside(y.half), stride);
  cpu::bias_backward(want_d_bias.flat(), inside(y.wide), stride);
  EXPECT_TRUE(d_bias.same_bits(want_d_bias));
  cpu::bias_add(inside(y.half), stride, bias.half.flat());
  cpu::bias_add(inside(y.wide), stride, bias.wide.flat());
  expect_rounded(y.half, y.wide, "bias");

  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < rows; ++i) ids.push_back(i * i % vocabulary);
  const Tensor at(ids.data(), DType::i32, {rows});
  HalfArray out(rows * columns);
  Array want(rows * columns);
  cpu::embedding_forward(out.tensor({rows, columns}), at, table.half.tensor({vocabulary, columns}));
  cpu::embedding_forward(want.tensor({rows, columns}), at, table.wide.tensor({vocabulary, columns}));
  EXPECT_TRUE(out.floats().same_bits(want));
  const Workspace sorted(cpu::embedding_backward_workspace(rows));
  cpu::embedding_backward(d_table.tensor({vocabulary, columns}), d_out.half.tensor({rows, columns}), at, sorted.data());
  cpu::embedding_backward(want_d_table.tensor({vocabulary, columns}), d_out.wide.tensor({rows, columns}), at, sorted.data());
  EXPECT_TRUE(d_table.same_bits(want_d_table));
}

// Gradients kept in bf16: the sum with what was there forms in fp32 and is rounded once.
TEST_P(InHalves, GradientsOfWeightsAreRoundedOnce) {
  constexpr std::int64_t vocabulary = 11;
  const std::initializer_list<std::int64_t> shape{rows, columns};
  Pair x(1, rows * columns), d_out(2, rows * columns), before(3, columns), table(4, vocabulary * columns);
  Array mean = Array::normal(5, rows, 0.1f), rstd(rows, 0.75f);
  const auto expect_same = [](const HalfArray& got, const Array& want, const char* what) {
    EXPECT_TRUE(got.same_bits(HalfArray(want))) << what;
  };

  HalfArray weight = before.half, bias = before.half;
  Array want_weight = before.wide, want_bias = before.wide;
  cpu::rms_norm_backward_weight(weight.flat(), d_out.half.tensor(shape), x.half.tensor(shape), rstd.flat());
  cpu::rms_norm_backward_weight(want_weight.flat(), d_out.half.tensor(shape), x.half.tensor(shape), rstd.flat());
  expect_same(weight, want_weight, "RMSNorm");

  weight = before.half, want_weight = before.wide;
  cpu::layer_norm_backward_weight(weight.flat(), bias.flat(), d_out.half.tensor(shape), x.half.tensor(shape), mean.flat(), rstd.flat());
  cpu::layer_norm_backward_weight(want_weight.flat(), want_bias.flat(), d_out.half.tensor(shape), x.half.tensor(shape), mean.flat(),
                                  rstd.flat());
  expect_same(weight, want_weight, "LayerNorm's weight");
  expect_same(bias, want_bias, "LayerNorm's bias");

  bias = before.half, want_bias = before.wide;
  cpu::bias_backward(bias.flat(), d_out.half.tensor(shape), columns);
  cpu::bias_backward(want_bias.flat(), d_out.half.tensor(shape), columns);
  expect_same(bias, want_bias, "bias");

  std::vector<std::int32_t> ids;  // most of them one
  for (std::int32_t i = 0; i < rows; ++i) ids.push_back(i % 4 != 0 ? 7 : i % vocabulary);
  const Workspace sorted(cpu::embedding_backward_workspace(rows));
  HalfArray d_table = table.half;
  Array want_table = table.wide;
  for (const Tensor& to : {d_table.tensor({vocabulary, columns}), want_table.tensor({vocabulary, columns})})
    cpu::embedding_backward(to, d_out.half.tensor(shape), Tensor(ids.data(), DType::i32, {rows}), sorted.data());
  expect_same(d_table, want_table, "embedding");
}

TEST_P(InHalves, TheOptimizerReadsGradientsOfHalves) {
  constexpr std::int64_t count = 5003;
  Pair gradients(1, count);
  Array scalars(adamw_scalars, 0.0f);
  scalars[adamw_learning_rate] = 0.05f, scalars[adamw_correction1] = 0.488f, scalars[adamw_correction2] = 0.0873f;
  scalars[adamw_gradient_factor] = 0.3f, scalars[adamw_step] = 3;
  const auto run = [&](const Tensor& gradient) {
    HalfArray master(Array::normal(2, count)), exp_avg(Array(count, 0.25f)), exp_avg_sq(Array(count, 0.5f));
    cpu::adamw({master.flat(), Tensor(), gradient, exp_avg.flat(), exp_avg_sq.flat()}, scalars.flat(), {}, {5, 77, 3});
    double squares = 1;
    cpu::sum_of_squares(Tensor(&squares, DType::f64, {1}), gradient);
    return std::pair(std::vector<HalfArray>{master, exp_avg, exp_avg_sq}, squares);
  };
  const auto [got, got_squares] = run(gradients.half.flat());
  const auto [want, want_squares] = run(gradients.wide.flat());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].same_bits(want[i])) << i;
  EXPECT_EQ(got_squares, want_squares);
}

TEST_P(InHalves, CrossEntropy) {
  Pair logits(1, rows * columns, 3.0f);
  std::vector<std::int32_t> targets;
  for (std::int32_t i = 0; i < rows; ++i) targets.push_back(i % 5 == 0 ? ignore_index : i * 7 % columns);
  const Tensor at(targets.data(), DType::i32, {rows});
  float scale = 1.0f / rows;
  double loss = 0, want_loss = 0, forward_loss = 0;
  const auto sum = [](double& value) { return Tensor(&value, DType::f64, {1}); };
  cpu::cross_entropy_forward(sum(forward_loss), logits.half.tensor({rows, columns}), at);
  cross_entropy_with_gradient(sum(loss), logits.half.tensor({rows, columns}), at, Tensor(&scale, DType::f32, {1}));
  cross_entropy_with_gradient(sum(want_loss), logits.wide.tensor({rows, columns}), at, Tensor(&scale, DType::f32, {1}));
  EXPECT_NEAR(loss, want_loss, 1e-6 * want_loss);
  EXPECT_EQ(forward_loss, loss);
  expect_rounded(logits.half, logits.wide, "d_logits");
}

TEST_P(InHalves, Attention) {
  AttentionShape shape = AttentionCase{"half", 2, 75, 75, 4, 2, 20}.shape();
  shape.query_stride = shape.out_stride = 80, shape.key_stride = 40;
  constexpr std::int64_t tokens = 150;
  Pair q(1, tokens * 80), k(2, tokens * 40), v(3, tokens * 40), d_out(4, tokens * 80);
  std::vector<std::int32_t> documents(tokens);
  for (std::int32_t i = 0; i < tokens; ++i) documents[static_cast<std::size_t>(i)] = i % 75 < 30 ? 0 : 30;
  for (const Tensor& document_begin : {Tensor(), Tensor(documents.data(), DType::i32, {tokens})}) {
    HalfArray out(tokens * 80), d_q(tokens * 80), d_k(tokens * 40), d_v(tokens * 40);
    Array want_out(tokens * 80), want_d_q(tokens * 80), want_d_k(tokens * 40), want_d_v(tokens * 40), lse(600), want_lse(600);
    cpu::attention_forward(shape, out.flat(), lse.flat(), q.half.flat(), k.half.flat(), v.half.flat(), document_begin, nullptr);
    cpu::attention_forward(shape, want_out.flat(), want_lse.flat(), q.wide.flat(), k.wide.flat(), v.wide.flat(), document_begin, nullptr);
    expect_rounded(out, want_out, "out");
    EXPECT_TRUE(lse.same_bits(want_lse));
    const Workspace workspace(cpu::attention_backward_workspace(shape, DType::bf16, document_begin.defined()));
    Array kept = out.floats();
    cpu::attention_backward(shape, d_q.flat(), d_k.flat(), d_v.flat(), d_out.half.flat(), q.half.flat(), k.half.flat(), v.half.flat(),
                            out.flat(), lse.flat(), document_begin, workspace.data());
    cpu::attention_backward(shape, want_d_q.flat(), want_d_k.flat(), want_d_v.flat(), d_out.wide.flat(), q.wide.flat(), k.wide.flat(),
                            v.wide.flat(), kept.flat(), lse.flat(), document_begin, workspace.data());
    expect_rounded(d_q, want_d_q, "d_q");
    expect_rounded(d_k, want_d_k, "d_k");
    expect_rounded(d_v, want_d_v, "d_v");
  }
}

TEST(Halves, MixedDtypesAreAProgrammingError) {
  Array wide(6), rstd(2);
  HalfArray half(6), weight(3);
  EXPECT_THROW(cpu::swiglu_forward(half.tensor({1, 3}), wide.tensor({1, 6})), Error);
  EXPECT_THROW(cpu::rms_norm_forward(wide.tensor({2, 3}), Tensor(), rstd.flat(), half.tensor({2, 3}), Tensor(), weight.flat(), 1e-5f),
               Error);
  EXPECT_THROW(cpu::add(half.flat(), half.flat(), wide.flat()), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
