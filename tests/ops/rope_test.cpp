#include "ops/rope.h"

#include <complex>
#include <numbers>

#include "ops/golden.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

struct Tables {
  Array cosines, sines;
};
Tables tables(std::int64_t positions, std::int64_t half) {
  Tables result{Array(positions * half), Array(positions * half)};
  for (std::int64_t p = 0; p < positions; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      result.cosines[p * half + i] = static_cast<float>(std::cos(angle));
      result.sines[p * half + i] = static_cast<float>(std::sin(angle));
    }
  return result;
}

class RopeWidths : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(Widths, RopeWidths, ::testing::Values(2, 8, 24, 64, 80, 128));

// Elements i and i + D/2 as one complex number times e^(i · angle). Rows are a slice of something wider.
TEST_P(RopeWidths, IsAComplexRotationAndTheInverseUndoesIt) {
  const ThreadsScope threads(2);
  constexpr std::int64_t tokens = 11, heads = 3, positions = 50;
  const std::int64_t width = GetParam(), half = width / 2, stride = heads * width + 9;
  Tables table = tables(positions, half);
  const Array before = Array::normal(1, tokens * stride);
  Array x = before;
  std::vector<std::int32_t> position(tokens);
  for (std::size_t n = 0; n < tokens; ++n) position[n] = static_cast<std::int32_t>(n * 17 % positions);
  const Tensor view(x.flat().data(), DType::f32, {tokens, heads, width}), ids(position.data(), DType::i32, {tokens});
  cpu::rope(view, stride, table.cosines.tensor({positions, half}), table.sines.tensor({positions, half}), ids, false);
  std::vector<double> want = before.doubles();
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t i = 0; i < half; ++i) {
        const auto first = static_cast<std::size_t>(n * stride + h * width + i), second = first + static_cast<std::size_t>(half);
        const std::int64_t at = position[static_cast<std::size_t>(n)] * half + i;
        const auto rotated = std::complex<double>(want[first], want[second]) * std::complex<double>(table.cosines[at], table.sines[at]);
        want[first] = rotated.real();
        want[second] = rotated.imag();
      }
  EXPECT_LE(relative_error(x, want), 1e-6);
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t i = heads * width; i < stride; ++i) EXPECT_EQ(x[n * stride + i], before[n * stride + i]);
  cpu::rope(view, stride, table.cosines.tensor({positions, half}), table.sines.tensor({positions, half}), ids, true);
  EXPECT_LE(relative_error(x, before.doubles()), 1e-6);
}

TEST(Rope, AgreesWithPyTorch) {
  const Golden golden("rope");
  Array x = golden.array("x"), d_x = golden.array("d_out"), cosines = golden.array("cosines"), sines = golden.array("sines");
  std::vector<std::int32_t> position = golden.integers("positions");
  const Tensor ids(position.data(), DType::i32, {6});
  cpu::rope(x.tensor({6, 3, 20}), 60, cosines.tensor({40, 10}), sines.tensor({40, 10}), ids, false);
  cpu::rope(d_x.tensor({6, 3, 20}), 60, cosines.tensor({40, 10}), sines.tensor({40, 10}), ids, true);
  EXPECT_LE(relative_error(x, golden.want("out")), fp32_bound);
  EXPECT_LE(relative_error(d_x, golden.want("d_x")), fp32_bound);
}

// Rotated back are the first heads alone; what is summed are the columns of all, as they are then, onto what was there.
TEST(Rope, BackwardWithBiasSumsWhatItRotated) {
  constexpr std::int64_t tokens = 37, heads = 5, rotated = 3, half = 6, columns = heads * 2 * half, positions = 50;
  Tables table = tables(positions, half);
  Array d_y = Array::normal(3, tokens * columns), d_bias = Array::normal(4, columns), apart = d_y;
  const std::vector<double> before = d_bias.doubles();
  std::vector<std::int32_t> position(tokens);
  for (std::size_t n = 0; n < tokens; ++n) position[n] = static_cast<std::int32_t>(n * 17 % positions);
  const Tensor ids(position.data(), DType::i32, {tokens}), cosines = table.cosines.tensor({positions, half}),
                                                           sines = table.sines.tensor({positions, half});
  cpu::rope_backward_with_bias(d_y.tensor({tokens, columns}), rotated, cosines, sines, ids, d_bias.tensor({columns}));
  cpu::rope(Tensor(apart.flat().data(), DType::f32, {tokens, rotated, 2 * half}), columns, cosines, sines, ids, true);
  EXPECT_EQ(d_y.doubles(), apart.doubles());
  std::vector<double> want = before;
  for (std::int64_t n = 0; n < tokens; ++n)
    for (std::int64_t c = 0; c < columns; ++c) want[static_cast<std::size_t>(c)] += apart[n * columns + c];
  EXPECT_LE(relative_error(d_bias, want), 1e-6);
}

TEST(Rope, RefusesAPositionOutsideTheTablesAndTakesNoTokens) {
  Array x(8), nothing(0);
  Tables table = tables(5, 4);
  std::int32_t position = 5;
  const auto rotate = [&](const Tensor& values, std::int64_t tokens) {
    cpu::rope(values, 8, table.cosines.tensor({5, 4}), table.sines.tensor({5, 4}), Tensor(&position, DType::i32, {tokens}), false);
  };
  EXPECT_THROW(rotate(x.tensor({1, 1, 8}), 1), Error);
  position = -1;
  EXPECT_THROW(rotate(x.tensor({1, 1, 8}), 1), Error);
  rotate(nothing.tensor({0, 1, 8}), 0);
}

}  // namespace
}  // namespace baleen::ops::testing
