#include "ops/norm.h"

#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

constexpr float eps = 1e-5f;

// The definition, in float64: x [N, C] → x / sqrt(mean(x²) + eps) · weight.
std::vector<double> reference(const std::vector<double>& x, const std::vector<double>& weight) {
  const std::size_t columns = weight.size();
  std::vector<double> out(x.size());
  for (std::size_t row = 0; row < x.size() / columns; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < columns; ++i) squares += std::pow(x[row * columns + i], 2);
    const double rms = std::sqrt(squares / static_cast<double>(columns) + eps);
    for (std::size_t i = 0; i < columns; ++i) out[row * columns + i] = x[row * columns + i] / rms * weight[i];
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
class RmsNorm : public ::testing::TestWithParam<NormShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, RmsNorm,
                         ::testing::Values(NormShape{1, 1}, NormShape{1, 7}, NormShape{3, 8}, NormShape{37, 64}, NormShape{20, 131}));

TEST_P(RmsNorm, ForwardAgreesWithTheDefinition) {
  const ThreadsScope threads(2);
  const auto [rows, columns] = GetParam();
  Array x = Array::normal(1, rows * columns), delta = Array::normal(2, rows * columns), weight = Array::normal(3, columns);
  Array out(rows * columns), residual(rows * columns), rstd(rows);
  cpu::rms_norm_forward(out.tensor({rows, columns}), residual.tensor({rows, columns}), rstd.flat(), x.tensor({rows, columns}),
                        delta.tensor({rows, columns}), weight.flat(), eps);
  EXPECT_LE(relative_error(residual, sum(x, delta)), 1e-7);
  EXPECT_LE(relative_error(out, reference(sum(x, delta), weight.doubles())), fp32_bound);
  for (std::int64_t row = 0; row < rows; ++row) EXPECT_TRUE(std::isfinite(rstd[row]) && rstd[row] > 0);

  // Without delta x itself is normalised and residual stays as it is.
  Array plain(rows * columns), untouched(rows * columns, 5.0f);
  cpu::rms_norm_forward(plain.tensor({rows, columns}), untouched.tensor({rows, columns}), rstd.flat(), x.tensor({rows, columns}), Tensor(),
                        weight.flat(), eps);
  EXPECT_LE(relative_error(plain, reference(x.doubles(), weight.doubles())), fp32_bound);
  for (std::int64_t i = 0; i < untouched.size(); ++i) EXPECT_EQ(untouched[i], 5.0f);

  // residual may be x.
  Array in_place = x, again(rows * columns);
  cpu::rms_norm_forward(again.tensor({rows, columns}), in_place.tensor({rows, columns}), rstd.flat(), in_place.tensor({rows, columns}),
                        delta.tensor({rows, columns}), weight.flat(), eps);
  EXPECT_TRUE(again.same_bits(out));
  EXPECT_TRUE(in_place.same_bits(residual));
}

TEST_P(RmsNorm, BackwardAgreesWithNumericGradients) {
  const auto [rows, columns] = GetParam();
  const ThreadsScope threads(2);
  Array x = Array::normal(1, rows * columns), weight = Array::normal(2, columns), d_out = Array::normal(3, rows * columns);
  Array out(rows * columns), rstd(rows), d_x(rows * columns), d_residual = Array::normal(4, rows * columns);
  const auto shape = [&](Array& array) { return array.tensor({rows, columns}); };
  cpu::rms_norm_forward(shape(out), Tensor(), rstd.flat(), shape(x), Tensor(), weight.flat(), eps);
  cpu::rms_norm_backward_input(shape(d_x), shape(d_out), Tensor(), shape(x), rstd.flat(), weight.flat());

  std::vector<double> by_x(static_cast<std::size_t>(rows * columns));
  const std::vector<double> all = x.doubles(), d = d_out.doubles(), weights = weight.doubles();
  for (std::int64_t begin = 0; begin < rows * columns; begin += columns) {  // rows do not depend on each other
    const std::vector<double> x_row(all.begin() + begin, all.begin() + begin + columns),
        d_row(d.begin() + begin, d.begin() + begin + columns);
    const auto gradient = numeric_gradient(x_row, [&](const auto& at) { return dot(reference(at, weights), d_row); });
    std::copy(gradient.begin(), gradient.end(), by_x.begin() + begin);
  }
  // A lone column is normalised to ±1: its gradient is a difference of nearly equal numbers, so only the scale of its terms bounds the
  // error.
  if (columns > 1) {
    EXPECT_LE(relative_error(d_x, by_x), fp32_bound);
  } else {
    EXPECT_NEAR(d_x[0], by_x[0], fp32_bound * std::abs(weight[0] * d_out[0] * rstd[0]));
  }

  // The residual's gradient is added, in place too.
  Array added = d_residual;
  cpu::rms_norm_backward_input(shape(added), shape(d_out), shape(added), shape(x), rstd.flat(), weight.flat());
  EXPECT_LE(relative_error(added, sum(d_x, d_residual)), 1e-6);

  Array d_weight = Array::normal(5, columns);
  const std::vector<double> before = d_weight.doubles();
  cpu::rms_norm_backward_weight(d_weight.flat(), shape(d_out), shape(x), rstd.flat());
  auto by_weight = numeric_gradient(weights, [&](const auto& at) { return dot(reference(all, at), d); });
  for (std::size_t i = 0; i < before.size(); ++i) by_weight[i] += before[i];
  EXPECT_LE(relative_error(d_weight, by_weight), fp32_bound);
}

// Many rows, so that the order of the sum is visible in the bits, and more columns than one strip.
TEST(RmsNormBits, WeightGradientDoesNotDependOnThreads) {
  constexpr std::int64_t rows = 500, columns = 1051;
  Array x = Array::normal(1, rows * columns), d_out = Array::normal(2, rows * columns), rstd(rows, 0.9f);
  const auto run = [&](int threads) {
    const ThreadsScope scope(threads);
    Array d_weight(columns, 0.0f);
    cpu::rms_norm_backward_weight(d_weight.flat(), d_out.tensor({rows, columns}), x.tensor({rows, columns}), rstd.flat());
    return d_weight;
  };
  const Array one = run(1), two = run(2);
  EXPECT_TRUE(two.same_bits(one));
  EXPECT_TRUE(run(2).same_bits(two));
  std::vector<double> want(columns);
  for (std::int64_t i = 0; i < rows * columns; ++i)
    want[static_cast<std::size_t>(i % columns)] += static_cast<double>(d_out[i]) * x[i] * static_cast<double>(0.9f);
  EXPECT_LE(relative_error(one, want), fp32_bound);
}

TEST(RmsNormBits, NoRowsChangeNothing) {
  Array nothing(0), weight(5, 1.0f), d_weight(5, 2.0f);
  cpu::rms_norm_forward(nothing.tensor({0, 5}), Tensor(), nothing.tensor({0}), nothing.tensor({0, 5}), Tensor(), weight.flat(), eps);
  cpu::rms_norm_backward_input(nothing.tensor({0, 5}), nothing.tensor({0, 5}), Tensor(), nothing.tensor({0, 5}), nothing.tensor({0}),
                               weight.flat());
  cpu::rms_norm_backward_weight(d_weight.flat(), nothing.tensor({0, 5}), nothing.tensor({0, 5}), nothing.tensor({0}));
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(d_weight[i], 2.0f);
}

TEST(RmsNormGolden, AgreesWithPyTorch) {
  const Golden golden("norm");
  Array x = golden.array("x"), delta = golden.array("delta"), weight = golden.array("weight"), d_out = golden.array("d_out");
  Array d_residual = golden.array("d_residual"), out(135), residual(135), rstd(5), d_x(135), d_weight(27, 0.0f);
  const auto shape = [](Array& array) { return array.tensor({5, 27}); };
  cpu::rms_norm_forward(shape(out), shape(residual), rstd.flat(), shape(x), shape(delta), weight.flat(), eps);
  cpu::rms_norm_backward_input(shape(d_x), shape(d_out), shape(d_residual), shape(residual), rstd.flat(), weight.flat());
  cpu::rms_norm_backward_weight(d_weight.flat(), shape(d_out), shape(residual), rstd.flat());
  EXPECT_LE(relative_error(residual, golden.want("residual")), fp32_bound);
  EXPECT_LE(relative_error(out, golden.want("out")), fp32_bound);
  EXPECT_LE(relative_error(d_x, golden.want("d_x")), fp32_bound);
  EXPECT_LE(relative_error(d_weight, golden.want("d_weight")), fp32_bound);
}

TEST(RmsNormErrors, RefusesAnotherDtypeWithARemedy) {
  Array values(8), rstd(2), weight(4);
  const Tensor integers(values.flat().data(), DType::i32, {2, 4});
  try {
    cpu::rms_norm_forward(integers, Tensor(), rstd.flat(), integers, Tensor(), weight.flat(), eps);
    FAIL() << "int32 was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_FALSE(error.remedy().empty());
  }
}

}  // namespace
}  // namespace baleen::ops::testing
