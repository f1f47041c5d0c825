// Each GPU operation against its CPU operation: fresh random inputs, odd sizes, poisoned outputs.
#include "gpu/support.h"
#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "ops/update_decision.h"
#include "ops/vocabulary_cross_entropy.h"

namespace baleen::testing {
namespace {

using ops::Context;

class GpuOps : public OnBothDevices {};

// Rows of v values that are filled up to `stride`, with what is no number.
Floats with_stride(const Floats& values, std::int64_t rows, std::int64_t v, std::int64_t stride) {
  Floats filled(static_cast<std::size_t>(rows * stride), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(values.begin() + i * v, v, filled.begin() + i * stride);
  return filled;
}
// The values alone; what fills up the rows must be 0 where they are gradients.
Floats without_stride(const Floats& filled, std::int64_t rows, std::int64_t v, std::int64_t stride, bool gradients) {
  Floats values;
  for (std::int64_t i = 0; i < rows; ++i) {
    values.insert(values.end(), filled.begin() + i * stride, filled.begin() + i * stride + v);
    for (std::int64_t pad = v; gradients && pad < stride; ++pad) EXPECT_EQ(filled[static_cast<std::size_t>(i * stride + pad)], 0.0f);
  }
  return values;
}

TEST_F(GpuOps, Add) {
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1023}, std::int64_t{100000}}) {
    const Floats a = random(count), b = random(count);
    expect_equal(
        [&](Side& side) {
          const Tensor out = side.poisoned({count});
          side.run([&](Context& context) { ops::add(context, out, side.put(a, {count}), side.put(b, {count})); });
          return std::vector<Floats>{side.get(out)};
        },
        "add " + std::to_string(count));
  }
}

TEST_F(GpuOps, RmsNorm) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 7}, {3, 8}, {37, 64}, {20, 131}, {1000, 2048}, {517, 1051}}) {
    const std::int64_t count = rows * columns, r = rows, c = columns;
    const Floats x = random(count), delta = random(count), weight = random(columns), d_out = random(count), d_residual = random(count),
                 before = random(columns);
    for (const bool fused : {false, true})
      expect_equal(
          [&](Side& side) {
            const Tensor x_there = side.put(x, {r, c}), weight_there = side.put(weight, {c}), d_out_there = side.put(d_out, {r, c});
            const Tensor delta_there = fused ? side.put(delta, {r, c}) : Tensor(), residual = fused ? side.poisoned({r, c}) : Tensor();
            const Tensor added = fused ? side.put(d_residual, {r, c}) : Tensor();
            const Tensor out = side.poisoned({r, c}), rstd = side.poisoned({r}), d_x = fused ? added : side.poisoned({r, c}),
                         d_weight = side.put(before, {c});
            const Tensor& input = fused ? residual : x_there;
            side.run([&](Context& context) {
              ops::rms_norm_forward(context, out, residual, rstd, x_there, delta_there, weight_there, 1e-5f);
              ops::rms_norm_backward_input(context, d_x, d_out_there, added, input, rstd, weight_there);
              ops::rms_norm_backward_weight(context, d_weight, d_out_there, input, rstd);
            });
            return std::vector<Floats>{side.get(input), side.get(out), side.get(rstd), side.get(d_x), side.get(d_weight)};
          },
          "norm " + std::to_string(rows) + " x " + std::to_string(columns) + (fused ? " fused" : ""));
  }
}

TEST_F(GpuOps, Swiglu) {
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {1, 1}, {5, 7}, {33, 64}, {301, 1028}}) {
    const std::int64_t r = rows, c = columns;
    const Floats gate_up = random(2 * r * c, 3.0f), d_out = random(r * c);
    expect_equal(
        [&](Side& side) {
          const Tensor out = side.poisoned({r, c}), d_gate_up = side.poisoned({r, 2 * c}), there = side.put(gate_up, {r, 2 * c}),
                       d = side.put(d_out, {r, c});
          side.run([&](Context& context) {
            ops::swiglu_forward(context, out, there);
            ops::swiglu_backward(context, d_gate_up, d, there);
          });
          return std::vector<Floats>{side.get(out), side.get(d_gate_up)};
        },
        "swiglu " + std::to_string(rows) + " x " + std::to_string(columns));
  }
}

TEST_F(GpuOps, Rope) {
  for (const std::int64_t half : {1, 3, 32}) {
    const std::int64_t tokens = 29, heads = 3, stride = heads * half * 2 + 5, positions = 41;
    const Floats x = random(tokens * stride), cosines = random(positions * half), sines = random(positions * half);
    const auto at = random_indices(tokens, positions);
    for (const bool inverse : {false, true})
      expect_equal(
          [&](Side& side) {
            const Tensor there = side.put(x, {tokens * stride});
            side.run([&](Context& context) {
              ops::rope(context, Tensor(there.data(), DType::f32, {tokens, heads, half * 2}), stride, side.put(cosines, {positions, half}),
                        side.put(sines, {positions, half}), side.put(at, {tokens}), inverse);
            });
            return std::vector<Floats>{side.get(there)};
          },
          "rope " + std::to_string(half));
  }
}

TEST_F(GpuOps, EmbeddingWithTheSameOrderOfSums) {
  for (const auto& [tokens, vocabulary, columns] :
       std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {700, 5, 300}, {1500, 997, 64}, {300, 10, 7}}) {
    const std::int64_t n = tokens, v = vocabulary, c = columns;
    const Floats table = random(v * c), d_out = random(n * c), before = random(v * c);
    auto ids = random_indices(n, v);
    ids[static_cast<std::size_t>(n / 2)] = ops::absent_id;
    const auto op = [&](Side& side) {
      const Tensor out = side.poisoned({n, c}), d_table = side.put(before, {v, c}), there = side.put(ids, {n});
      side.run([&](Context& context) {
        ops::embedding_forward(context, out, there, side.put(table, {v, c}));
        ops::embedding_backward(context, d_table, side.put(d_out, {n, c}), there);
      });
      return std::vector<Floats>{side.get(out), side.get(d_table)};
    };
    EXPECT_EQ(op(*cpu), op(*gpu)) << n << " tokens, seed " << seed;  // the same bits
  }
}

TEST_F(GpuOps, CrossEntropy) {
  for (const auto& [rows, columns] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 2}, {5, 7}, {67, 257}, {40, 50257}, {600, 1024}}) {
    const std::int64_t n = rows, v = columns;
    const Floats logits = random(n * v, 3.0f), scale = random(1);
    auto targets = random_indices(n, v);
    if (n > 1) targets[static_cast<std::size_t>(n / 2)] = ops::ignore_index;
    for (const bool backward : {false, true})
      expect_equal(
          [&](Side& side) {
            const Tensor there = side.put(logits, {n, v}), sum = side.put(std::vector<double>{0.5}, {1}), at = side.put(targets, {n});
            const Tensor factor = side.put(scale, {1});
            side.run([&](Context& context) {
              if (backward)
                ops::cross_entropy_forward_backward(context, sum, there, at, factor);
              else
                ops::cross_entropy_forward(context, sum, there, at);
            });
            return std::vector<Floats>{side.get(there), {static_cast<float>(side.get<double>(sum)[0])}};
          },
          "cross-entropy " + std::to_string(n) + " x " + std::to_string(v));
  }
}

TEST_F(GpuOps, VocabularyCrossEntropy) {
  for (const std::int64_t v : {std::int64_t{1}, std::int64_t{129}, std::int64_t{25129}, std::int64_t{75968}}) {
    const std::int64_t n = 11, first = 40;
    const Floats logits = random(n * v, 3.0f), scale = random(1), of_others = random(n * ops::vocabulary_statistics);
    auto targets = random_indices(n, first + 2 * v);
    targets[4] = ops::ignore_index;
    targets[5] = static_cast<std::int32_t>(first + v - 1);
    // Another rank's: a greatest logit, a sum above zero, and the target's logit where the target is not here.
    Floats others = of_others;
    for (std::int64_t i = 0; i < n; ++i) {
      others[static_cast<std::size_t>(3 * i + 1)] =
          1 + others[static_cast<std::size_t>(3 * i + 1)] * others[static_cast<std::size_t>(3 * i + 1)];
      const std::int64_t own = targets[static_cast<std::size_t>(i)] - first;
      if (own >= 0 && own < v) others[static_cast<std::size_t>(3 * i + 2)] = 0;
    }
    const auto padded = [&](Side& side) { return side.device().kind() == DeviceKind::gpu ? (v + 63) / 64 * 64 : v; };
    for (const bool backward : {false, true})
      expect_equal(
          [&](Side& side) {
            const std::int64_t stride = padded(side);
            const Tensor there = side.put(with_stride(logits, n, v, stride), {n, stride}), sum = side.put(std::vector<double>{0.5}, {1}),
                         at = side.put(targets, {n});
            const Tensor factor = side.put(scale, {1}), mine = side.poisoned({n, 3}),
                         all = side.put(Floats(static_cast<std::size_t>(6 * n)), {2, n, 3});
            const Tensor theirs = side.put(others, {n, 3});
            side.run([&](Context& context) {
              ops::vocabulary_cross_entropy_statistics(context, mine, there, at, first, v);
              if (context.stream.measuring()) return ops::vocabulary_cross_entropy(context, sum, there, all, at, first, v, factor);
              context.stream.copy(all.data(), mine.data(), mine.bytes());
              context.stream.copy(all.as<float>() + mine.elements(), theirs.data(), theirs.bytes());
              ops::vocabulary_cross_entropy(context, sum, there, all, at, first, v, backward ? factor : Tensor());
            });
            return std::vector<Floats>{
                side.get(mine), without_stride(side.get(there), n, v, stride, backward), {static_cast<float>(side.get<double>(sum)[0])}};
          },
          "vocabulary cross-entropy " + std::to_string(v));
  }
}

TEST_F(GpuOps, CrossEntropyOfPaddedRows) {
  for (const std::int64_t v : {std::int64_t{2}, std::int64_t{257}, std::int64_t{1024}, std::int64_t{50257}, std::int64_t{151937}}) {
    const std::int64_t n = 9, padded = (v + 63) / 64 * 64;
    const Floats logits = random(n * v, 3.0f), scale = random(1);
    auto targets = random_indices(n, v);
    targets[4] = ops::ignore_index;
    targets[5] = static_cast<std::int32_t>(v - 1);
    for (const bool backward : {false, true})
      expect_equal(
          [&](Side& side) {
            const std::int64_t stride = side.device().kind() == DeviceKind::gpu ? padded : v;
            const Tensor there = side.put(with_stride(logits, n, v, stride), {n, stride}), sum = side.put(std::vector<double>{0.5}, {1}),
                         at = side.put(targets, {n});
            const Tensor factor = side.put(scale, {1});
            side.run([&](Context& context) {
              if (backward)
                ops::cross_entropy_forward_backward(context, sum, there, at, factor, v);
              else
                ops::cross_entropy_forward(context, sum, there, at, v);
            });
            return std::vector<Floats>{without_stride(side.get(there), n, v, stride, backward),
                                       {static_cast<float>(side.get<double>(sum)[0])}};
          },
          "padded cross-entropy " + std::to_string(v));
  }
}

TEST_F(GpuOps, AdamW) {
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{1027}, std::int64_t{65536}}) {
    const Floats w = random(count), g = random(count), m = random(count, 0.1f), scalars{1e-2f, 0.19f, 0.0975f, 0.7f, 2, 0, 0, 0};
    Floats v = random(count, 0.1f);
    for (float& value : v) value *= value;
    expect_equal(
        [&](Side& side) {
          const Tensor weights = side.put(w, {count}), first = side.put(m, {count}), second = side.put(v, {count});
          side.run([&](Context& context) {
            ops::adamw(context, {weights, Tensor(), side.put(g, {count}), first, second}, side.put(scalars, {ops::adamw_scalars}),
                       {0.9f, 0.95f, 1e-8f, 0.1f}, {});
          });
          return std::vector<Floats>{side.get(weights), side.get(first), side.get(second)};
        },
        "adamw " + std::to_string(count));
  }
}

TEST_F(GpuOps, DecidesAboutTheUpdateAsTheCpu) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const auto& [loss, squares, limit] : std::vector<std::tuple<double, double, double>>{
           {1, 16, 1}, {1, 0.3, 1}, {1, 7e9, 0}, {1, 1.0 / 3, 0.1}, {nan, 2, 1}, {infinity, 2, 1}, {1, nan, 1}, {1, infinity, 1}}) {
    std::vector<Floats> results;
    for (Side* side : {cpu.get(), gpu.get()}) {
      const Tensor scalars = side->put(Floats(ops::adamw_scalars, 0.0f), {ops::adamw_scalars});
      const Tensor loss_sum = side->put(std::vector<double>{loss}, {1}), square_sum = side->put(std::vector<double>{squares}, {1});
      const Floats ones(9, 1.0f), zeros(9, 0.0f);
      const Tensor weights = side->put(ones, {9}), gradients = side->put(ones, {9}), first = side->put(zeros, {9}),
                   second = side->put(zeros, {9});
      side->run([&](Context& context) {
        ops::decide_update(context, scalars, loss_sum, square_sum, limit);
        ops::adamw(context, {weights, Tensor(), gradients, first, second}, scalars, {}, {});
      });
      results.push_back(side->get(scalars));
      const bool good = std::isfinite(loss) && std::isfinite(squares);
      for (const float value : side->get(first)) EXPECT_EQ(value != 0, good) << loss << ' ' << squares;
    }
    EXPECT_EQ(results[0], results[1]) << loss << ' ' << squares << ' ' << limit;
  }
}

TEST_F(GpuOps, SumOfSquares) {
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4097}, std::int64_t{10000001}}) {
    const Floats values = random(count);
    std::vector<double> sums;
    for (Side* side : {cpu.get(), gpu.get(), gpu.get()}) {
      const Tensor sum = side->put(std::vector<double>{2.0}, {1}), there = side->put(values, {count});
      side->run([&](Context& context) { ops::sum_of_squares(context, sum, there); });
      sums.push_back(side->get<double>(sum)[0]);
    }
    EXPECT_NEAR(sums[1], sums[0], 1e-12 * sums[0]) << count << ", seed " << seed;
    EXPECT_EQ(sums[1], sums[2]);
  }
}

TEST_F(GpuOps, Matmul) {
  struct Case {
    std::int64_t m, n, k, offset;  // a, b and out begin `offset` columns into rows that are wider by that
  };
  for (const Case& c : {Case{1, 1, 1, 0}, Case{3, 5, 7, 1}, Case{64, 48, 32, 0}, Case{130, 67, 257, 3}, Case{257, 512, 1024, 4},
                        Case{1, 1000, 64, 0}, Case{5, 4, 0, 0}, Case{0, 4, 3, 0}})
    for (int kind = 0; kind < 16; ++kind) {
      const bool a_transposed = (kind & 1) != 0, b_transposed = (kind & 2) != 0, out_transposed = (kind & 4) != 0,
                 accumulate = (kind & 8) != 0;
      const auto rows = [](std::int64_t r, std::int64_t columns, bool transposed) { return transposed ? columns : r; };
      // As stored, whole rows with their unused columns.
      const std::int64_t ar = rows(c.m, c.k, a_transposed), ac = rows(c.k, c.m, a_transposed), br = rows(c.k, c.n, b_transposed),
                         bc = rows(c.n, c.k, b_transposed), outr = rows(c.m, c.n, out_transposed), outc = rows(c.n, c.m, out_transposed);
      const Floats a = random(ar * (ac + c.offset)), b = random(br * (bc + c.offset)), before = random(outr * (outc + c.offset));
      const auto matrix = [&](const Tensor& whole, std::int64_t columns, bool transposed) {
        const ops::Matrix part = ops::Matrix(whole).column_range(c.offset, columns);
        return transposed ? part.transpose() : part;
      };
      expect_equal(
          [&](Side& side) {
            const Tensor at = side.put(a, {ar, ac + c.offset}), bt = side.put(b, {br, bc + c.offset}),
                         out = side.put(before, {outr, outc + c.offset});
            if (!accumulate && c.offset == 0 && out.bytes() > 0) {  // the product must not read it
              const Floats poison(before.size(), std::numeric_limits<float>::quiet_NaN());
              side.write(out.data(), poison.data(), out.bytes());
            }
            side.run([&](Context& context) {
              ops::matmul(context, matrix(out, outc, out_transposed), matrix(at, ac, a_transposed), matrix(bt, bc, b_transposed),
                          accumulate);
            });
            return std::vector<Floats>{side.get(out)};
          },
          "matmul " + std::to_string(c.m) + " x " + std::to_string(c.n) + " x " + std::to_string(c.k) + " kind " + std::to_string(kind));
    }
}

TEST_F(GpuOps, IndicesOutsideBecomeNaN) {
  const std::vector<std::int32_t> ids{1, -2, 4};
  const Tensor there = gpu->put(ids, {3}), out = gpu->poisoned({3, 2}), x = gpu->put(Floats(6, 1.0f), {3, 1, 2});
  const Tensor ones = gpu->put(Floats(8, 1.0f), {4, 2}), d_table = gpu->put(Floats(8, 0.0f), {4, 2}),
               angles = gpu->put(Floats(4, 0.5f), {4, 1});
  const Tensor loss = gpu->put(std::vector<double>{0}, {1}), logits = gpu->put(Floats(12, 1.0f), {3, 4}), scale = gpu->put(Floats{1}, {1});
  gpu->run([&](Context& context) {
    ops::embedding_forward(context, out, there, ones);
    ops::embedding_backward(context, d_table, out, there);
    ops::rope(context, x, 2, angles, angles, there, false);
    ops::cross_entropy_forward_backward(context, loss, logits, there, scale);
  });
  const Floats rows = gpu->get(out), turned = gpu->get(x), gradients = gpu->get(logits);
  for (const std::size_t row : {0, 1, 2}) {
    EXPECT_EQ(std::isnan(rows[row * 2]), row != 0);
    EXPECT_EQ(std::isnan(turned[row * 2]), row != 0);
    EXPECT_EQ(std::isnan(gradients[row * 4 + 3]), row != 0);
  }
  EXPECT_TRUE(std::isnan(gpu->get<double>(loss)[0]));
  EXPECT_EQ(gpu->get(d_table), (Floats{0, 0, 1, 1, 0, 0, 0, 0}));
}

TEST_F(GpuOps, NumbersThatAreNotReachTheResult) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Floats values(10, 1.0f);
    values[3] = bad;
    for (Side* side : {cpu.get(), gpu.get()}) {
      const Tensor logits = side->put(values, {1, 10}), loss = side->put(std::vector<double>{0}, {1}),
                   at = side->put(std::vector<std::int32_t>{1}, {1});
      const Tensor out = side->poisoned({1, 10}), rstd = side->poisoned({1}), sum = side->put(std::vector<double>{0}, {1});
      side->run([&](Context& context) {
        ops::rms_norm_forward(context, out, Tensor(), rstd, logits, Tensor(), side->put(Floats(10, 1.0f), {10}), 1e-5f);
        ops::sum_of_squares(context, sum, logits.reshape({10}));
        ops::cross_entropy_forward(context, loss, logits, at);
      });
      EXPECT_TRUE(std::isnan(side->get<double>(loss)[0]));
      EXPECT_FALSE(std::isfinite(side->get<double>(sum)[0]));
      EXPECT_TRUE(std::isnan(side->get(out)[3]));
    }
  }
}

}  // namespace
}  // namespace baleen::testing
