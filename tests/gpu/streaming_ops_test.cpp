// GPU operations whose blocks stay and walk over rows, with more rows than blocks; and passes that sum what they write.
#include <limits>

#include "gpu/support.h"
#include "ops/cross_entropy.h"
#include "ops/rope.h"

namespace baleen::testing {
namespace {

using ops::Context;

class GpuStreamingOps : public OnBothDevices {
 protected:
  // Many values from few that were drawn.
  Floats repeated(std::int64_t count, float scale) {
    const Floats drawn = random_rounded(65537, scale);
    Floats values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = drawn[(i + i / drawn.size() * 31) % drawn.size()];
    return values;
  }
};

TEST_F(GpuStreamingOps, RotatesBackAndSumsTheBias) {
  for (const std::int64_t half : {1, 3, 32, 64})
    for (const std::int64_t tokens : {1, 29, 5000}) {
      constexpr std::int64_t heads = 7, rotated = 5, positions = 41;
      const std::int64_t columns = heads * 2 * half;
      const Floats d_y = random_rounded(tokens * columns), cosines = random(positions * half), sines = random(positions * half),
                   before = random(columns), before_rounded = random_rounded(columns);
      const auto at = random_indices(tokens, positions);
      const auto op = [&](Side& side) {
        const Tensor there = side.put_rounded(d_y, {tokens, columns}), again = side.put_rounded(d_y, {tokens, columns}),
                     d_bias = side.put(before, {columns}), d_bias_rounded = side.put_rounded(before_rounded, {columns});
        side.run([&](Context& context) {
          const Tensor c = side.put(cosines, {positions, half}), s = side.put(sines, {positions, half}), ids = side.put(at, {tokens});
          ops::rope_backward_with_bias(context, there, rotated, c, s, ids, d_bias);
          ops::rope_backward_with_bias(context, again, rotated, c, s, ids, d_bias_rounded);
        });
        return std::vector<Result>{{side.get_floats(there)}, {side.get_floats(d_bias), false}, {side.get_floats(d_bias_rounded)}};
      };
      const std::string what = "half " + std::to_string(half) + ", tokens " + std::to_string(tokens);
      expect_equal(
          [&](Side& side) {
            side.precision = DType::f32;
            std::vector<Floats> all;
            for (Result& result : op(side)) all.push_back(std::move(result.values));
            return all;
          },
          what);
      expect_rounded_equal(op, what);
      EXPECT_EQ(op(*gpu)[1].values, op(*gpu)[1].values) << what;
    }
}

TEST_F(GpuStreamingOps, PositionsOutsideMakeTheBiasNaN) {
  const Tensor d_y = gpu->put(Floats(6, 1.0f), {3, 2}), angles = gpu->put(Floats(4, 0.5f), {4, 1}), d_bias = gpu->put(Floats(2, 0.0f), {2});
  const Tensor ids = gpu->put(std::vector<std::int32_t>{1, -2, 4}, {3});
  gpu->run([&](Context& context) { ops::rope_backward_with_bias(context, d_y, 1, angles, angles, ids, d_bias); });
  const Floats rows = gpu->get(d_y), sums = gpu->get(d_bias);
  for (const std::size_t row : {0, 1, 2}) EXPECT_EQ(std::isnan(rows[row * 2]), row != 0);
  EXPECT_TRUE(std::isnan(sums[0]) && std::isnan(sums[1]));
}

// Rows of the lengths that stream through half a multiprocessor and a whole one, and one too long for that; more of them than blocks,
// padded by columns that are no logits. Among them are ignored ones that hold no numbers, and ones whose greatest logits come late.
TEST_F(GpuStreamingOps, CrossEntropyOfManyRows) {
  for (const auto& [rows, padding, stride] :
       std::vector<std::array<std::int64_t, 3>>{{600, 3, 21008}, {140, 0, 78000}, {136, 47, 151936}, {3, 1, 155656}}) {
    const std::int64_t n = rows, v = stride - padding, padded = stride;
    Floats logits = repeated(n * v, 3.0f);
    auto targets = random_indices(n, v);
    const auto row = [&](std::int64_t i) { return logits.begin() + i * v; };
    const std::int64_t late = n - 1, empty = n / 2;
    row(late)[v - 1] = 400;                                                          // far above all before
    std::fill_n(row(empty), v - 100, -0x1p99f);                                      // threads see next to nothing first
    for (const std::int64_t ignored : {n / 3, n / 3 + 132, n / 3 + 264, n / 3 + 1})  // neighbours in a block and in memory
      if (ignored < n && ignored != late && ignored != empty) {
        targets[static_cast<std::size_t>(ignored)] = ops::ignore_index;
        std::fill_n(row(ignored), v, std::numeric_limits<float>::quiet_NaN());
      }
    for (const std::int64_t i : {std::int64_t{0}, late, empty}) targets[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(v - 1);
    const Floats scale{0.37f};
    const auto op = [&](Side& side) {
      const std::int64_t columns = side.device().kind() == DeviceKind::gpu ? padded : v;
      Floats wide = logits;
      if (columns != v) {
        wide.assign(static_cast<std::size_t>(n * columns), std::numeric_limits<float>::quiet_NaN());
        for (std::int64_t i = 0; i < n; ++i) std::copy_n(row(i), v, wide.begin() + i * columns);
      }
      const Tensor there = side.put_rounded(wide, {n, columns}), sum = side.put(std::vector<double>{0.5}, {1}), at = side.put(targets, {n});
      side.run([&](Context& context) { ops::cross_entropy_forward_backward(context, sum, there, at, side.put(scale, {1}), v); });
      const Floats all = side.get_floats(there);
      Floats shares, rest;  // without the targets', the largest by far; what has few other large ones
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t c = 0; c < columns; ++c) {
          const float value = all[static_cast<std::size_t>(i * columns + c)];
          if (c >= v)
            EXPECT_EQ(value, 0.0f) << "behind row " << i;
          else
            (i == late || i == empty || c == targets[static_cast<std::size_t>(i)] ? rest : shares).push_back(value);
        }
      return std::vector<Result>{{shares}, {rest}, {{static_cast<float>(side.get<double>(sum)[0])}, false}};
    };
    const std::string what = "cross-entropy " + std::to_string(n) + " x " + std::to_string(padded);
    expect_rounded_equal(op, what);
    if (n != 600) continue;
    const auto once = op(*gpu), twice = op(*gpu);
    for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(once[i].values, twice[i].values) << what;
  }
}

// A logit that is not a number reaches the loss and the row's gradients, wherever it stands, and no other row's.
TEST_F(GpuStreamingOps, NotANumberStaysInItsRow) {
  constexpr std::int64_t n = 300, v = 21008;
  for (const std::int64_t column : {std::int64_t{0}, std::int64_t{4097}, v - 1}) {
    std::vector<BFloat16> logits(static_cast<std::size_t>(n * v), to_bfloat16(0.5f));
    logits[static_cast<std::size_t>(270 * v + column)] = to_bfloat16(std::numeric_limits<float>::quiet_NaN());
    const Tensor there = gpu->put(logits, {n, v}), sum = gpu->put(std::vector<double>{0}, {1}),
                 at = gpu->put(std::vector<std::int32_t>(n, 7), {n});
    gpu->run([&](Context& context) { ops::cross_entropy_forward_backward(context, sum, there, at, gpu->put(Floats{1}, {1})); });
    EXPECT_TRUE(std::isnan(gpu->get<double>(sum)[0])) << column;
    const Floats gradients = gpu->get_floats(there);
    for (std::int64_t i = 0; i < n; ++i)
      EXPECT_EQ(std::isnan(gradients[static_cast<std::size_t>(i * v + 9)]), i == 270) << column << ' ' << i;
  }
}

}  // namespace
}  // namespace baleen::testing
