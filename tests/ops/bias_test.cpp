#include "ops/bias.h"

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

struct BiasShape {
  std::int64_t rows, columns, stride;
};
class Bias : public ::testing::TestWithParam<BiasShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Bias,
                         ::testing::Values(BiasShape{1, 1, 1}, BiasShape{3, 7, 20}, BiasShape{300, 64, 64}, BiasShape{21, 1051, 1060}));

// y lies inside rows of `stride`: what stands beside it must not change.
TEST_P(Bias, AddsToItsColumnsAndSumsTheRows) {
  const ThreadsScope threads(2);
  const auto [rows, columns, stride] = GetParam();
  Array y = Array::normal(1, rows * stride), bias = Array::normal(2, columns), d_bias = Array::normal(3, columns);
  const Array before = y;
  const Tensor view(y.flat().data(), DType::f32, {rows, columns});
  std::vector<double> want = d_bias.doubles();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < columns; ++i) want[static_cast<std::size_t>(i)] += y[row * stride + i];
  cpu::bias_backward(d_bias.flat(), view, stride);
  EXPECT_LE(relative_error(d_bias, want), 1e-6);
  cpu::bias_add(view, stride, bias.flat());
  for (std::int64_t at = 0; at < rows * stride; ++at) {
    const std::int64_t column = at % stride;
    EXPECT_EQ(y[at], column < columns ? before[at] + bias[column] : before[at]) << at;
  }
}

TEST(BiasBits, GradientDoesNotDependOnThreads) {
  constexpr std::int64_t rows = 500, columns = 1051;
  Array d_y = Array::normal(1, rows * columns);
  const auto run = [&](int threads) {
    const ThreadsScope scope(threads);
    Array d_bias(columns, 0.0f);
    cpu::bias_backward(d_bias.flat(), d_y.tensor({rows, columns}), columns);
    return d_bias;
  };
  EXPECT_TRUE(run(2).same_bits(run(1)));
}

TEST(BiasErrors, RefusesAWrongLength) {
  Array y(12, 0.0f), bias(5, 0.0f);
  EXPECT_THROW(cpu::bias_add(y.tensor({3, 4}), 4, bias.flat()), Error);
  EXPECT_THROW(cpu::bias_backward(bias.flat(), y.tensor({3, 4}), 4), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
