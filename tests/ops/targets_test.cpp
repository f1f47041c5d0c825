// The instruction set is chosen at run time: the portable code, which no machine that tests would run by itself, must agree with the best.
#include "ops/targets.h"

#include <functional>

#include "ops/adamw.h"
#include "ops/attention_reference.h"
#include "ops/bias.h"
#include "ops/cross_entropy.h"
#include "ops/gelu.h"
#include "ops/head_norm.h"
#include "ops/layer_norm.h"
#include "ops/norm.h"
#include "ops/swiglu.h"

namespace baleen::ops::testing {
namespace {

// Each result of `run` must be near, but not all have the same bits: otherwise the portable code did not run.
void expect_agreement(const std::function<std::vector<Array>()>& run) {
  const ThreadsScope threads(2);
  const std::vector<Array> best = run();
  std::vector<Array> portable;
  {
    const InstructionsScope scope(true);
    portable = run();
  }
  ASSERT_EQ(best.size(), portable.size());
  bool all_same = true;
  for (std::size_t i = 0; i < best.size(); ++i) {
    EXPECT_LE(relative_error(portable[i], best[i].doubles()), fp32_bound) << i;
    all_same = all_same && portable[i].same_bits(best[i]);
  }
  EXPECT_TRUE(!all_same || hwy::SupportedTargets() == HWY_STATIC_TARGET);
}

TEST(PortableCode, AgreesInAttention) {
  const AttentionCase c{"portable", 1, 75, 75, 2, 1, 20};
  AttentionShape shape = c.shape();
  shape.query_stride = shape.out_stride = 40, shape.key_stride = 20;
  expect_agreement([&] {
    Array q = Array::normal(1, 75 * 40), k = Array::normal(2, 75 * 20), v = Array::normal(3, 75 * 20), d_out = Array::normal(4, 75 * 40);
    Array out(75 * 40), lse(150), d_q(75 * 40), d_k(75 * 20), d_v(75 * 20);
    const Workspace workspace(cpu::attention_backward_workspace(shape, DType::f32, false));
    cpu::attention_forward(shape, out.flat(), lse.flat(), q.flat(), k.flat(), v.flat(), Tensor(), nullptr);
    cpu::attention_backward(shape, d_q.flat(), d_k.flat(), d_v.flat(), d_out.flat(), q.flat(), k.flat(), v.flat(), out.flat(), lse.flat(),
                            Tensor(), workspace.data());
    return std::vector<Array>{out, lse, d_q, d_k, d_v};
  });
}

TEST(PortableCode, AgreesInNormAndSwiglu) {
  expect_agreement([] {
    Array x = Array::normal(1, 300), delta = Array::normal(2, 300), weight = Array::normal(3, 100), d_out = Array::normal(4, 300);
    Array out(300), residual(300), rstd(3), d_x(300), d_weight(100, 0.0f), gated(150), d_gate_up(300);
    const auto shape = [](Array& array) { return array.tensor({3, 100}); };
    cpu::rms_norm_forward(shape(out), shape(residual), rstd.flat(), shape(x), shape(delta), weight.flat(), 1e-5f);
    cpu::rms_norm_backward_input(shape(d_x), shape(d_out), Tensor(), shape(residual), rstd.flat(), weight.flat());
    cpu::rms_norm_backward_weight(d_weight.flat(), shape(d_out), shape(residual), rstd.flat());
    cpu::swiglu_forward(gated.tensor({3, 50}), shape(x));
    cpu::swiglu_backward(shape(d_gate_up), gated.tensor({3, 50}), shape(x));
    return std::vector<Array>{out, residual, rstd, d_x, d_weight, gated, d_gate_up};
  });
}

TEST(PortableCode, AgreesInLayerNormHeadNormGeluAndBias) {
  expect_agreement([] {
    Array x = Array::normal(1, 300), delta = Array::normal(2, 300), weight = Array::normal(3, 100), bias = Array::normal(4, 100);
    Array d_out = Array::normal(5, 300), out(300), residual(300), mean(3), rstd(3), d_x(300), d_weight(100, 0.0f), d_bias(100, 0.0f);
    const auto shape = [](Array& array) { return array.tensor({3, 100}); };
    cpu::layer_norm_forward(shape(out), shape(residual), mean.flat(), rstd.flat(), shape(x), shape(delta), weight.flat(), bias.flat(),
                            1e-5f);
    cpu::layer_norm_backward_input(shape(d_x), shape(d_out), Tensor(), shape(residual), mean.flat(), rstd.flat(), weight.flat());
    cpu::layer_norm_backward_weight(d_weight.flat(), d_bias.flat(), shape(d_out), shape(residual), mean.flat(), rstd.flat());

    Array heads = Array::normal(6, 300), head_weight = Array::normal(7, 25), input(300), head_rstd(12), d_heads = d_out, d_normed(300);
    const auto by_head = [](Array& array) { return array.tensor({3, 4, 25}); };
    cpu::head_norm_forward(by_head(heads), 100, by_head(input), head_rstd.flat(), head_weight.flat(), 1e-5f);
    cpu::head_norm_backward_input(by_head(d_heads), 100, by_head(d_normed), by_head(input), head_rstd.flat(), head_weight.flat());

    Array activated(300), d_activated(300), biased = x, bias_gradient(100, 0.0f);
    cpu::gelu_forward(activated.flat(), x.flat());
    cpu::gelu_backward(d_activated.flat(), d_out.flat(), x.flat());
    cpu::bias_add(shape(biased), 100, bias.flat());
    cpu::bias_backward(bias_gradient.flat(), shape(d_out), 100);
    return std::vector<Array>{out,   residual,  mean,    rstd,     d_x,       d_weight,    d_bias, heads,
                              input, head_rstd, d_heads, d_normed, activated, d_activated, biased, bias_gradient};
  });
}

TEST(PortableCode, AgreesInCrossEntropyAndAdamW) {
  expect_agreement([] {
    Array logits = Array::normal(1, 3 * 77, 3.0f), weights = Array::normal(2, 100), gradients = Array::normal(3, 100), exp_avg(100, 0.1f);
    Array exp_avg_sq(100, 0.2f), scalars(adamw_scalars, 0.5f), loss(1);
    std::vector<std::int32_t> targets{5, 76, 0};
    double sum = 0;
    float scale = 0.5f;
    cross_entropy_with_gradient(Tensor(&sum, DType::f64, {1}), logits.tensor({3, 77}), Tensor(targets.data(), DType::i32, {3}),
                                Tensor(&scale, DType::f32, {1}));
    cpu::adamw({weights.flat(), Tensor(), gradients.flat(), exp_avg.flat(), exp_avg_sq.flat()}, scalars.flat(), AdamWConstants(), {});
    cpu::sum_of_squares(Tensor(&sum, DType::f64, {1}), gradients.flat());
    loss[0] = static_cast<float>(sum);
    return std::vector<Array>{logits, weights, exp_avg, exp_avg_sq, loss};
  });
}

}  // namespace
}  // namespace baleen::ops::testing
