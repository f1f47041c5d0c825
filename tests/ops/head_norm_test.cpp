#include "ops/head_norm.h"

#include "ops/norm.h"
#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

constexpr float eps = 1e-6f;

struct HeadNormShape {
  std::int64_t tokens, heads, head_dim, stride;
};
class HeadNorm : public ::testing::TestWithParam<HeadNormShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, HeadNorm,
                         ::testing::Values(HeadNormShape{1, 1, 2, 2}, HeadNormShape{5, 3, 6, 31}, HeadNormShape{70, 4, 32, 256},
                                           HeadNormShape{9, 2, 20, 40}));

// Head by head the same as RMSNorm of compact rows, which tests/ops/norm_test.cpp holds to its definition; and nothing beside is touched.
TEST_P(HeadNorm, IsRmsNormOfEachHeadInPlace) {
  const ThreadsScope threads(2);
  const auto [tokens, heads, head_dim, stride] = GetParam();
  const std::int64_t rows = tokens * heads, count = rows * head_dim;
  Array x = Array::normal(1, tokens * stride), d = Array::normal(2, tokens * stride), weight = Array::normal(3, head_dim);
  const Array x_before = x, d_before = d;
  Array compact(count), d_compact(count);
  const auto for_each = [&, heads = heads, head_dim = head_dim, stride = stride](auto body) {
    for (std::int64_t i = 0; i < count; ++i) body(i / (heads * head_dim) * stride + i % (heads * head_dim), i);
  };
  for_each([&](std::int64_t at, std::int64_t i) {
    compact[i] = x[at];
    d_compact[i] = d[at];
  });
  Array input(count), rstd(rows), d_out(count), want(count), want_rstd(rows), want_d(count);
  cpu::head_norm_forward(Tensor(x.flat().data(), DType::f32, {tokens, heads, head_dim}), stride, input.flat(), rstd.flat(), weight.flat(),
                         eps);
  cpu::rms_norm_forward(want.tensor({rows, head_dim}), Tensor(), want_rstd.flat(), compact.tensor({rows, head_dim}), Tensor(),
                        weight.flat(), eps);
  EXPECT_TRUE(input.same_bits(compact));
  EXPECT_TRUE(rstd.same_bits(want_rstd));
  cpu::head_norm_backward_input(Tensor(d.flat().data(), DType::f32, {tokens, heads, head_dim}), stride, d_out.flat(), input.flat(),
                                rstd.flat(), weight.flat());
  cpu::rms_norm_backward_input(want_d.tensor({rows, head_dim}), d_compact.tensor({rows, head_dim}), Tensor(),
                               compact.tensor({rows, head_dim}), want_rstd.flat(), weight.flat());
  EXPECT_TRUE(d_out.same_bits(d_compact));
  Array x_want = x_before, d_want = d_before;
  for_each([&](std::int64_t at, std::int64_t i) {
    x_want[at] = want[i];
    d_want[at] = want_d[i];
  });
  EXPECT_TRUE(x.same_bits(x_want));
  EXPECT_TRUE(d.same_bits(d_want));

  // Without a place for the input, the same result.
  Array again = x_before;
  cpu::head_norm_forward(Tensor(again.flat().data(), DType::f32, {tokens, heads, head_dim}), stride, Tensor(), rstd.flat(), weight.flat(),
                         eps);
  EXPECT_TRUE(again.same_bits(x));
}

TEST(HeadNormErrors, RefusesWrongShapes) {
  Array x(24, 1.0f), rstd(4), weight(6, 1.0f), input(24);
  EXPECT_THROW(cpu::head_norm_forward(x.tensor({2, 2, 6}), 11, input.flat(), rstd.flat(), weight.flat(), eps), Error);
  EXPECT_THROW(cpu::head_norm_forward(x.tensor({2, 3, 4}), 12, input.flat(), rstd.flat(), weight.flat(), eps), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
