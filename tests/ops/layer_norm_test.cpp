#include "ops/layer_norm.h"

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

constexpr float eps = 1e-5f;

// The definition, in float64.
std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& bias) {
  const std::size_t columns = weight.size();
  std::vector<double> out(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += columns) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < columns; ++i) mean += x[begin + i] / static_cast<double>(columns);
    for (std::size_t i = 0; i < columns; ++i) variance += std::pow(x[begin + i] - mean, 2) / static_cast<double>(columns);
    for (std::size_t i = 0; i < columns; ++i) out[begin + i] = (x[begin + i] - mean) / std::sqrt(variance + eps) * weight[i] + bias[i];
  }
  return out;
}

std::vector<double> sum(const Array& a, const Array& b) {
  std::vector<double> result = a.doubles();
  for (std::size_t i = 0; i < result.size(); ++i) result[i] += b[static_cast<std::int64_t>(i)];
  return result;
}

struct NormShape {
  std::int64_t rows, columns;
};
class LayerNorm : public ::testing::TestWithParam<NormShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, LayerNorm,
                         ::testing::Values(NormShape{1, 2}, NormShape{1, 7}, NormShape{3, 8}, NormShape{37, 64}, NormShape{20, 131}));

TEST_P(LayerNorm, ForwardAgreesWithTheDefinition) {
  const ThreadsScope threads(2);
  const auto [rows, columns] = GetParam();
  const auto shape = [rows = rows, columns = columns](Array& array) { return array.tensor({rows, columns}); };
  Array x = Array::normal(1, rows * columns), delta = Array::normal(2, rows * columns), weight = Array::normal(3, columns),
        bias = Array::normal(4, columns);
  for (std::int64_t i = 0; i < x.size(); ++i) x[i] += 3.0f;  // a mean far from 0
  Array out(rows * columns), residual(rows * columns), mean(rows), rstd(rows);
  cpu::layer_norm_forward(shape(out), shape(residual), mean.flat(), rstd.flat(), shape(x), shape(delta), weight.flat(), bias.flat(), eps);
  EXPECT_LE(relative_error(residual, sum(x, delta)), 1e-7);
  EXPECT_LE(relative_error(out, reference(sum(x, delta), weight.doubles(), bias.doubles())), fp32_bound);

  // Without delta x itself is normalised and residual stays as it is.
  Array plain(rows * columns), untouched(rows * columns, 5.0f);
  cpu::layer_norm_forward(shape(plain), shape(untouched), mean.flat(), rstd.flat(), shape(x), Tensor(), weight.flat(), bias.flat(), eps);
  EXPECT_LE(relative_error(plain, reference(x.doubles(), weight.doubles(), bias.doubles())), fp32_bound);
  for (std::int64_t i = 0; i < untouched.size(); ++i) EXPECT_EQ(untouched[i], 5.0f);

  // residual may be x.
  Array in_place = x, again(rows * columns);
  cpu::layer_norm_forward(shape(again), shape(in_place), mean.flat(), rstd.flat(), shape(in_place), shape(delta), weight.flat(),
                          bias.flat(), eps);
  EXPECT_TRUE(again.same_bits(out));
  EXPECT_TRUE(in_place.same_bits(residual));
}

TEST_P(LayerNorm, BackwardAgreesWithNumericGradients) {
  const ThreadsScope threads(2);
  const auto [rows, columns] = GetParam();
  const auto shape = [rows = rows, columns = columns](Array& array) { return array.tensor({rows, columns}); };
  Array x = Array::normal(1, rows * columns), weight = Array::normal(2, columns), bias = Array::normal(3, columns),
        d_out = Array::normal(4, rows * columns);
  Array out(rows * columns), mean(rows), rstd(rows), d_x(rows * columns), d_residual = Array::normal(5, rows * columns);
  cpu::layer_norm_forward(shape(out), Tensor(), mean.flat(), rstd.flat(), shape(x), Tensor(), weight.flat(), bias.flat(), eps);
  cpu::layer_norm_backward_input(shape(d_x), shape(d_out), Tensor(), shape(x), mean.flat(), rstd.flat(), weight.flat());
  const std::vector<double> all = x.doubles(), d = d_out.doubles(), weights = weight.doubles(), biases = bias.doubles();
  if (columns > 2) {  // two columns are normalised to ±1 whatever they are: their gradient is rounding alone
    std::vector<double> by_x(all.size());
    for (std::int64_t begin = 0; begin < rows * columns; begin += columns) {  // rows do not depend on each other
      const std::vector<double> x_row(all.begin() + begin, all.begin() + begin + columns),
          d_row(d.begin() + begin, d.begin() + begin + columns);
      const auto gradient = numeric_gradient(x_row, [&](const auto& at) { return dot(reference(at, weights, biases), d_row); });
      std::copy(gradient.begin(), gradient.end(), by_x.begin() + begin);
    }
    EXPECT_LE(relative_error(d_x, by_x), fp32_bound);
  }
  // The residual's gradient is added, in place too.
  Array added = d_residual;
  cpu::layer_norm_backward_input(shape(added), shape(d_out), shape(added), shape(x), mean.flat(), rstd.flat(), weight.flat());
  EXPECT_LE(relative_error(added, sum(d_x, d_residual)), 1e-6);

  // Weight gradients are added to what is there.
  Array d_weight = Array::normal(6, columns), d_bias = Array::normal(7, columns);
  auto by_weight = numeric_gradient(weights, [&](const auto& at) { return dot(reference(all, at, biases), d); });
  auto by_bias = numeric_gradient(biases, [&](const auto& at) { return dot(reference(all, weights, at), d); });
  for (std::size_t i = 0; i < by_weight.size(); ++i) {
    by_weight[i] += d_weight[static_cast<std::int64_t>(i)];
    by_bias[i] += d_bias[static_cast<std::int64_t>(i)];
  }
  cpu::layer_norm_backward_weight(d_weight.flat(), d_bias.flat(), shape(d_out), shape(x), mean.flat(), rstd.flat());
  EXPECT_LE(relative_error(d_weight, by_weight), fp32_bound);
  EXPECT_LE(relative_error(d_bias, by_bias), fp32_bound);
}

TEST(LayerNormBits, WeightGradientsDoNotDependOnThreads) {
  constexpr std::int64_t rows = 500, columns = 1051;
  Array x = Array::normal(1, rows * columns), d_out = Array::normal(2, rows * columns), mean(rows, 0.1f), rstd(rows, 0.9f);
  const auto run = [&](int threads) {
    const ThreadsScope scope(threads);
    Array both(2 * columns, 0.0f);
    cpu::layer_norm_backward_weight(Tensor(both.flat().data(), DType::f32, {columns}), both.from(columns), d_out.tensor({rows, columns}),
                                    x.tensor({rows, columns}), mean.flat(), rstd.flat());
    return both;
  };
  EXPECT_TRUE(run(2).same_bits(run(1)));
}

}  // namespace
}  // namespace baleen::ops::testing
