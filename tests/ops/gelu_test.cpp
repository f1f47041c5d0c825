#include "ops/gelu.h"

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

// In float64, with ½ (1 + tanh u) written as 1 / (1 + e^-2u), which does not cancel.
double reference(double x) {
  return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

class Gelu : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Counts, Gelu, ::testing::Values(1, 7, 64, 20011));

TEST_P(Gelu, AgreesWithTheDefinitionAndItsNumericGradient) {
  const ThreadsScope threads(2);
  const std::int64_t count = GetParam();
  Array x = Array::normal(1, count, 2.0f), d_out = Array::normal(2, count), out(count), d_x(count);
  cpu::gelu_forward(out.flat(), x.flat());
  cpu::gelu_backward(d_x.flat(), d_out.flat(), x.flat());
  std::vector<double> want, gradient;
  for (std::int64_t i = 0; i < count; ++i) {
    want.push_back(reference(x[i]));
    gradient.push_back(d_out[i] * (reference(x[i] + 1e-5) - reference(x[i] - 1e-5)) / 2e-5);
  }
  EXPECT_LE(relative_error(out, want), 1e-6);
  EXPECT_LE(relative_error(d_x, gradient), 1e-6);
  cpu::gelu_backward(d_out.flat(), d_out.flat(), x.flat());  // in place, as the MLP does
  EXPECT_TRUE(d_out.same_bits(d_x));
}

// PyTorch 2's F.gelu(x, approximate="tanh") in float64.
TEST(GeluGolden, AgreesWithPyTorch) {
  const float at[] = {-3.0f, -1.0f, -0.25f, 0.0f, 0.5f, 2.0f};
  const double want[] = {-0.0036373920817729943, -0.15880800939172324, -0.100324649298315, 0.0, 0.34571400982514394, 1.9545976940877752};
  for (std::size_t i = 0; i < 6; ++i) {
    Array x(1, at[i]), out(1);
    cpu::gelu_forward(out.flat(), x.flat());
    EXPECT_NEAR(out[0], want[i], 3e-7 * std::abs(want[i])) << at[i];
  }
}

TEST(GeluEdges, EachElementIsAccurate) {
  constexpr std::int64_t count = 2001;
  Array x(count), out(count);
  for (std::int64_t i = 0; i < count; ++i) x[i] = static_cast<float>(i - count / 2) * 0.0071f;
  cpu::gelu_forward(out.flat(), x.flat());
  for (std::int64_t i = 0; i < count; ++i) EXPECT_NEAR(out[i], reference(x[i]), 6e-6 * std::abs(reference(x[i])) + 1e-36) << x[i];
}

TEST(GeluEdges, SaturatesAndKeepsNotANumber) {
  Array x(5), out(5), d_x(5), d_out(5, 1.0f);
  const float values[] = {-1e30f, 1e30f, 1000.0f, 0.0f, poison};
  for (std::int64_t i = 0; i < 5; ++i) x[i] = values[i];
  cpu::gelu_forward(out.flat(), x.flat());
  cpu::gelu_backward(d_x.flat(), d_out.flat(), x.flat());
  EXPECT_EQ(out[1], 1e30f);
  EXPECT_EQ(out[2], 1000.0f);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_TRUE(std::isfinite(d_x[0]));
  EXPECT_EQ(d_x[1], 1.0f);
  EXPECT_EQ(d_x[2], 1.0f);
  EXPECT_EQ(d_x[3], 0.5f);
  EXPECT_TRUE(std::isnan(d_x[4]));
}

}  // namespace
}  // namespace baleen::ops::testing
