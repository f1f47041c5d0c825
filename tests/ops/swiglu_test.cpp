#include "ops/swiglu.h"

#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

// One element, in float64: gate · sigmoid(gate) · up.
double reference(double gate, double up) {
  return gate / (1.0 + std::exp(-gate)) * up;
}

struct SwigluShape {
  std::int64_t rows, width;
};
class Swiglu : public ::testing::TestWithParam<SwigluShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Swiglu, ::testing::Values(SwigluShape{1, 1}, SwigluShape{1, 9}, SwigluShape{5, 16}, SwigluShape{131, 83}));

TEST_P(Swiglu, AgreesWithTheDefinitionAndItsNumericGradient) {
  const ThreadsScope threads(2);
  const auto [rows, width] = GetParam();
  Array gate_up = Array::normal(1, rows * width * 2, 3.0f), d_out = Array::normal(2, rows * width), out(rows * width),
        d_gate_up(rows * width * 2);
  cpu::swiglu_forward(out.tensor({rows, width}), gate_up.tensor({rows, 2 * width}));
  cpu::swiglu_backward(d_gate_up.tensor({rows, 2 * width}), d_out.tensor({rows, width}), gate_up.tensor({rows, 2 * width}));
  std::vector<double> want(static_cast<std::size_t>(rows * width)), gradient(static_cast<std::size_t>(rows * width * 2));
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t gate_at = row * 2 * width + i, up_at = gate_at + width, at = row * width + i;
      const std::vector<double> pair{gate_up[gate_at], gate_up[up_at]};
      want[static_cast<std::size_t>(at)] = reference(pair[0], pair[1]);
      const auto slope = numeric_gradient(pair, [](const auto& p) { return reference(p[0], p[1]); });
      gradient[static_cast<std::size_t>(gate_at)] = slope[0] * d_out[at];
      gradient[static_cast<std::size_t>(up_at)] = slope[1] * d_out[at];
    }
  EXPECT_LE(relative_error(out, want), 1e-6);
  EXPECT_LE(relative_error(d_gate_up, gradient), 1e-6);
}

TEST(SwigluEdges, SaturatesAndKeepsNotANumber) {
  Array gate_up(10, 1.0f), out(5), d_gate_up(10), d_out(5, 1.0f);
  const float gates[] = {-1000.0f, 1000.0f, -87.5f, 0.0f, poison};
  for (std::int64_t i = 0; i < 5; ++i) gate_up[i] = gates[i];
  cpu::swiglu_forward(out.tensor({1, 5}), gate_up.tensor({1, 10}));
  cpu::swiglu_backward(d_gate_up.tensor({1, 10}), d_out.tensor({1, 5}), gate_up.tensor({1, 10}));
  EXPECT_NEAR(out[0], 0.0f, 1e-30f);
  EXPECT_EQ(out[1], 1000.0f);
  EXPECT_NEAR(out[2], 0.0f, 1e-30f);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_NEAR(d_gate_up[0], 0.0f, 1e-30f);
  EXPECT_EQ(d_gate_up[1], 1.0f);
  EXPECT_EQ(d_gate_up[3], 0.5f);
  EXPECT_TRUE(std::isnan(d_gate_up[4]));
  Array nothing(0);
  cpu::swiglu_forward(nothing.tensor({0, 5}), nothing.tensor({0, 10}));
}

// Element by element: the exponential under it is good to 2 units in the last place over its whole range.
TEST(SwigluEdges, EachElementIsAccurate) {
  constexpr std::int64_t count = 8001;
  Array gate_up(2 * count, 1.0f), out(count);
  for (std::int64_t i = 0; i < count; ++i) gate_up[i] = static_cast<float>(i - count / 2) * 0.0213f;
  cpu::swiglu_forward(out.tensor({1, count}), gate_up.tensor({1, 2 * count}));
  for (std::int64_t i = 0; i < count; ++i) {
    const double want = reference(gate_up[i], 1.0);
    EXPECT_NEAR(out[i], want, 6e-7 * std::abs(want)) << gate_up[i];
  }
}

TEST(SwigluGolden, AgreesWithPyTorch) {
  const Golden golden("swiglu");
  Array gate_up = golden.array("gate_up"), d_out = golden.array("d_out"), out(7 * 19), d_gate_up(7 * 38);
  cpu::swiglu_forward(out.tensor({7, 19}), gate_up.tensor({7, 38}));
  cpu::swiglu_backward(d_gate_up.tensor({7, 38}), d_out.tensor({7, 19}), gate_up.tensor({7, 38}));
  EXPECT_LE(relative_error(out, golden.want("out")), fp32_bound);
  EXPECT_LE(relative_error(d_gate_up, golden.want("d_gate_up")), fp32_bound);
}

TEST(SwigluErrors, RefusesToWriteOverItsInput) {
  Array gate_up(8), d_out(4);
  EXPECT_THROW(cpu::swiglu_backward(gate_up.tensor({1, 8}), d_out.tensor({1, 4}), gate_up.tensor({1, 8})), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
