// GPU passes that sum what they write.
#include <gtest/gtest.h>

#include <cmath>

#include "gpu/support.h"
#include "ops/rope.h"

namespace baleen::testing {
namespace {

using ops::Context;

class GpuStreamingOps : public OnBothDevices {};

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

}  // namespace
}  // namespace baleen::testing
