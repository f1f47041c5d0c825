#include "ops/adamw.h"

#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

class AdamWSizes : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, AdamWSizes, ::testing::Values(0, 1, 7, 64, 20011));

// One step of the formula in adamw.h, in float64, from a state that is not zero.
TEST_P(AdamWSizes, AgreesWithTheFormulaForAnyNumberOfThreads) {
  const std::int64_t count = GetParam();
  const AdamWConstants constants{.beta1 = 0.8f, .beta2 = 0.97f, .eps = 1e-3f, .weight_decay = 0.2f};
  Array scalars(adamw_scalars);
  scalars[adamw_learning_rate] = 0.05f, scalars[adamw_correction1] = 0.488f, scalars[adamw_correction2] = 0.0873f;
  scalars[adamw_gradient_factor] = 0.3f, scalars[adamw_skip] = 0;
  Array gradients = Array::normal(2, count);
  const Array weights0 = Array::normal(1, count), exp_avg0 = Array::normal(3, count, 0.1f);
  Array exp_avg_sq0 = Array::normal(4, count, 0.1f);
  for (std::int64_t i = 0; i < count; ++i) exp_avg_sq0[i] = std::abs(exp_avg_sq0[i]);
  struct State {
    Array weights, exp_avg, exp_avg_sq;
  };
  const auto run = [&](int threads) {
    const ThreadsScope scope(threads);
    State state{weights0, exp_avg0, exp_avg_sq0};
    cpu::adamw({state.weights.flat(), Tensor(), gradients.flat(), state.exp_avg.flat(), state.exp_avg_sq.flat()}, scalars.flat(), constants,
               {});
    return state;
  };
  const State one = run(1), two = run(2);
  std::vector<double> w(static_cast<std::size_t>(count)), m(w), v(w);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const double g = static_cast<double>(scalars[adamw_gradient_factor]) * gradients[i];
    m[at] = constants.beta1 * static_cast<double>(exp_avg0[i]) + (1.0 - constants.beta1) * g;
    v[at] = constants.beta2 * static_cast<double>(exp_avg_sq0[i]) + (1.0 - constants.beta2) * g * g;
    const double step = m[at] / scalars[adamw_correction1] / (std::sqrt(v[at] / scalars[adamw_correction2]) + constants.eps);
    w[at] = weights0[i] - scalars[adamw_learning_rate] * (static_cast<double>(constants.weight_decay) * weights0[i] + step);
  }
  EXPECT_LE(relative_error(one.weights, w), 1e-6);
  EXPECT_LE(relative_error(one.exp_avg, m), 1e-6);
  EXPECT_LE(relative_error(one.exp_avg_sq, v), 1e-6);
  EXPECT_TRUE(two.weights.same_bits(one.weights) && two.exp_avg.same_bits(one.exp_avg) && two.exp_avg_sq.same_bits(one.exp_avg_sq));
}

TEST(AdamW, TwentyStepsAgreeWithPyTorch) {
  const Golden golden("adamw");
  constexpr std::int64_t count = 37, steps = 20;
  const AdamWConstants constants{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
  Array weights = golden.array("weights"), gradients = golden.array("gradients"), exp_avg(count, 0.0f), exp_avg_sq(count, 0.0f);
  Array scalars(adamw_scalars);
  for (int step = 1; step <= steps; ++step) {
    scalars[adamw_learning_rate] = static_cast<float>(1e-2 * step / steps);
    scalars[adamw_correction1] = static_cast<float>(1 - std::pow(0.9, step));
    scalars[adamw_correction2] = static_cast<float>(1 - std::pow(0.95, step));
    scalars[adamw_gradient_factor] = 1, scalars[adamw_skip] = 0;
    const Tensor gradient = gradients.tensor({steps, count}).rows(step - 1, 1).reshape({count});
    cpu::adamw({weights.flat(), Tensor(), gradient, exp_avg.flat(), exp_avg_sq.flat()}, scalars.flat(), constants, {});
  }
  EXPECT_LE(relative_error(weights, golden.want("final_weights")), 1e-6);
  EXPECT_LE(relative_error(exp_avg, golden.want("exp_avg")), 1e-6);
  EXPECT_LE(relative_error(exp_avg_sq, golden.want("exp_avg_sq")), 1e-6);
}

TEST(SumOfSquares, IsExactEnoughAndHasTheSameBitsForAnyNumberOfThreads) {
  for (const std::int64_t count : {0, 1, 9, 1024, 100'003, 300'000}) {  // from 262,144 on a block is longer than 1,024
    Array values = Array::normal(1, count);
    const auto run = [&](int threads) {
      const ThreadsScope scope(threads);
      double sum = 3;
      cpu::sum_of_squares(Tensor(&sum, DType::f64, {1}), values.flat());
      return sum;
    };
    long double want = 3;
    for (std::int64_t i = 0; i < count; ++i) want += static_cast<long double>(values[i]) * values[i];
    EXPECT_NEAR(run(1), static_cast<double>(want), 1e-13 * static_cast<double>(want)) << count;
    EXPECT_EQ(run(2), run(1)) << count;
  }
}

TEST(SumOfSquares, NotANumberStays) {
  Array values(100, 1.0f);
  values[99] = poison;
  double sum = 0;
  cpu::sum_of_squares(Tensor(&sum, DType::f64, {1}), values.flat());
  EXPECT_TRUE(std::isnan(sum));
}

}  // namespace
}  // namespace baleen::ops::testing
