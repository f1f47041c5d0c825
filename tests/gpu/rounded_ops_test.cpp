// Each GPU operation in bf16 against the CPU's in fp32, from inputs that bf16 holds exactly; and the operations of GPT-2 and Qwen in fp32.
#include <cmath>

#include "gpu/support.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/bias.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/gelu.h"
#include "ops/head_norm.h"
#include "ops/layer_norm.h"
#include "ops/matmul.h"
#include "ops/matmul_gelu.h"
#include "ops/matmul_swiglu.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/swiglu.h"

namespace baleen::testing {
namespace {

using ops::Context;
using Sizes = std::vector<std::pair<std::int64_t, std::int64_t>>;

class GpuRoundedOps : public OnBothDevices {
 protected:
  // In fp32 on both sides, then in bf16 on the GPU.
  template <class Op>
  void compare(const Op& op, const std::string& what) {
    expect_equal(
        [&](Side& side) {
          side.precision = DType::f32;
          std::vector<Floats> all;
          for (Result& result : op(side)) all.push_back(std::move(result.values));
          return all;
        },
        what + " fp32");
    expect_rounded_equal(op, what + " bf16");
  }
};

const Sizes row_sizes{{1, 7}, {3, 8}, {37, 64}, {20, 131}, {1000, 2048}, {517, 1051}, {40, 896}, {9, 5000}, {2, 30000}};

TEST_F(GpuRoundedOps, RmsNorm) {
  for (const auto& [rows, columns] : row_sizes) {
    const std::int64_t r = rows, c = columns;
    const Floats x = random_rounded(r * c), delta = random_rounded(r * c), weight = random_rounded(c), d_out = random_rounded(r * c),
                 d_residual = random_rounded(r * c), before = random(c);
    compare(
        [&](Side& side) {
          const Tensor there = side.put_rounded(x, {r, c}), weights = side.put_rounded(weight, {c}), d = side.put_rounded(d_out, {r, c});
          const Tensor out = side.poisoned_rounded({r, c}), rstd = side.poisoned({r}), d_x = side.put_rounded(d_residual, {r, c}),
                       d_weight = side.put(before, {c}), sum = side.poisoned_rounded({r, c}), normed_sum = side.poisoned_rounded({r, c}),
                       rstd_sum = side.poisoned({r});
          side.run([&](Context& context) {
            ops::rms_norm_forward(context, out, Tensor(), rstd, there, Tensor(), weights, 1e-5f);
            ops::rms_norm_backward_input(context, d_x, d, d_x, there, rstd, weights);
            ops::rms_norm_backward_weight(context, d_weight, d, there, rstd);
            ops::rms_norm_forward(context, normed_sum, sum, rstd_sum, there, side.put_rounded(delta, {r, c}), weights, 1e-5f);
          });
          return std::vector<Result>{{side.get_floats(out)}, {side.get_floats(rstd), false},
                                     {side.get_floats(d_x)}, {side.get_floats(d_weight), false},
                                     {side.get_floats(sum)}, {side.get_floats(normed_sum), true, 1.5}};
        },
        "RMSNorm " + std::to_string(r) + " x " + std::to_string(c));
  }
}

TEST_F(GpuRoundedOps, LayerNorm) {
  for (const auto& [rows, columns] : row_sizes) {
    const std::int64_t r = rows, c = columns;
    const Floats x = random_rounded(r * c), delta = random_rounded(r * c), weight = random_rounded(c), bias = random_rounded(c),
                 d_out = random_rounded(r * c), d_residual = random_rounded(r * c), before = random(c);
    compare(
        [&](Side& side) {
          const Tensor there = side.put_rounded(x, {r, c}), weights = side.put_rounded(weight, {c}), biases = side.put_rounded(bias, {c}),
                       d = side.put_rounded(d_out, {r, c});
          const Tensor out = side.poisoned_rounded({r, c}), mean = side.poisoned({r}), rstd = side.poisoned({r}),
                       d_x = side.put_rounded(d_residual, {r, c}), d_weight = side.put(before, {c}), d_bias = side.put(before, {c}),
                       sum = side.poisoned_rounded({r, c}), normed_sum = side.poisoned_rounded({r, c}), rstd_sum = side.poisoned({r});
          side.run([&](Context& context) {
            ops::layer_norm_forward(context, out, Tensor(), mean, rstd, there, Tensor(), weights, biases, 1e-5f);
            ops::layer_norm_backward_input(context, d_x, d, d_x, there, mean, rstd, weights);
            ops::layer_norm_backward_weight(context, d_weight, d_bias, d, there, mean, rstd);
            ops::layer_norm_forward(context, normed_sum, sum, side.poisoned({r}), rstd_sum, there, side.put_rounded(delta, {r, c}), weights,
                                    biases, 1e-5f);
          });
          return std::vector<Result>{{side.get_floats(out)},
                                     {side.get_floats(rstd), false},
                                     {side.get_floats(d_x)},
                                     {side.get_floats(d_weight), false},
                                     {side.get_floats(d_bias), false},
                                     {side.get_floats(sum)},
                                     {side.get_floats(normed_sum), true, 1.5}};
        },
        "LayerNorm " + std::to_string(r) + " x " + std::to_string(c));
  }
}

TEST_F(GpuRoundedOps, NormOfHeads) {
  for (const std::int64_t width : {2, 33, 64, 128}) {
    const std::int64_t n = 57, heads = 5, stride = heads * width + 8;
    const Floats x = random_rounded(n * stride), d = random_rounded(n * stride), weight = random_rounded(width);
    compare(
        [&](Side& side) {
          const Tensor there = side.put_rounded(x, {n * stride}), d_there = side.put_rounded(d, {n * stride}),
                       weights = side.put_rounded(weight, {width});
          const Tensor input = side.poisoned_rounded({n, heads, width}), rstd = side.poisoned({n, heads}),
                       d_out = side.poisoned_rounded({n, heads, width});
          side.run([&](Context& context) {
            const auto view = [&](const Tensor& whole) { return Tensor(whole.data(), whole.dtype(), {n, heads, width}); };
            ops::head_norm_forward(context, view(there), stride, input, rstd, weights, 1e-5f);
            ops::head_norm_backward_input(context, view(d_there), stride, d_out, input, rstd, weights);
          });
          return std::vector<Result>{{side.get_floats(there)},
                                     {side.get_floats(input)},
                                     {side.get_floats(rstd), false},
                                     {side.get_floats(d_there)},
                                     {side.get_floats(d_out)}};
        },
        "norm of heads of " + std::to_string(width));
  }
}

TEST_F(GpuRoundedOps, Bias) {
  for (const auto& [rows, columns] : Sizes{{1, 1}, {5, 7}, {37, 64}, {3000, 1152}, {700, 333}}) {
    for (const std::int64_t more : {0, 3, 8}) {
      const std::int64_t r = rows, c = columns, stride = c + more;
      const Floats y = random_rounded(r * stride), bias = random_rounded(c), before = random(c);
      compare(
          [&](Side& side) {
            const Tensor there = side.put_rounded(y, {r * stride}), d_bias = side.put(before, {c});
            const Tensor view(there.data(), there.dtype(), {r, c});
            side.run([&](Context& context) {
              ops::bias_backward(context, d_bias, view, stride);
              ops::bias_add(context, view, stride, side.put_rounded(bias, {c}));
            });
            return std::vector<Result>{{side.get_floats(there)}, {side.get_floats(d_bias), false}};
          },
          "bias " + std::to_string(r) + " x " + std::to_string(c) + " + " + std::to_string(more));
    }
  }
}

TEST_F(GpuRoundedOps, Gelu) {
  for (const std::int64_t count : {0, 1, 1023, 100000}) {
    const Floats x = random_rounded(count, 4.0f), d_out = random_rounded(count);
    compare(
        [&](Side& side) {
          const Tensor there = side.put_rounded(x, {count}), d = side.put_rounded(d_out, {count}), out = side.poisoned_rounded({count});
          side.run([&](Context& context) {
            ops::gelu_forward(context, out, there);
            ops::gelu_backward(context, d, d, there);
          });
          return std::vector<Result>{{side.get_floats(out)}, {side.get_floats(d)}};
        },
        "gelu " + std::to_string(count));
  }
}

TEST_F(GpuRoundedOps, SwigluAddAndRope) {
  for (const auto& [rows, columns] : Sizes{{1, 1}, {5, 7}, {33, 64}, {301, 1032}}) {
    const std::int64_t r = rows, c = columns;
    const Floats gate_up = random_rounded(2 * r * c, 3.0f), d_out = random_rounded(r * c);
    compare(
        [&](Side& side) {
          const Tensor out = side.poisoned_rounded({r, c}), d_gate_up = side.poisoned_rounded({r, 2 * c}),
                       there = side.put_rounded(gate_up, {r, 2 * c}), d = side.put_rounded(d_out, {r, c}),
                       sum = side.poisoned_rounded({r, c});
          side.run([&](Context& context) {
            ops::swiglu_forward(context, out, there);
            ops::swiglu_backward(context, d_gate_up, d, there);
            ops::add(context, sum, d, d);
          });
          return std::vector<Result>{{side.get_floats(out)}, {side.get_floats(d_gate_up)}, {side.get_floats(sum)}};
        },
        "swiglu " + std::to_string(r) + " x " + std::to_string(c));
  }
  for (const std::int64_t half : {1, 3, 32, 64}) {
    const std::int64_t tokens = 29, heads = 3, stride = heads * half * 2 + 8, positions = 41;
    const Floats x = random_rounded(tokens * stride), cosines = random(positions * half), sines = random(positions * half);
    const auto at = random_indices(tokens, positions);
    for (const bool inverse : {false, true})
      compare(
          [&](Side& side) {
            const Tensor there = side.put_rounded(x, {tokens * stride});
            side.run([&](Context& context) {
              ops::rope(context, Tensor(there.data(), there.dtype(), {tokens, heads, half * 2}), stride,
                        side.put(cosines, {positions, half}), side.put(sines, {positions, half}), side.put(at, {tokens}), inverse);
            });
            return std::vector<Result>{{side.get_floats(there)}};
          },
          "rope " + std::to_string(half));
  }
}

TEST_F(GpuRoundedOps, Embedding) {
  for (const auto& [tokens, vocabulary, columns] :
       std::vector<std::array<std::int64_t, 3>>{{1, 1, 1}, {700, 5, 304}, {5000, 997, 64}, {3000, 3, 7}}) {
    const std::int64_t n = tokens, v = vocabulary, c = columns;
    const Floats table = random_rounded(v * c), d_out = random_rounded(n * c), before = random(v * c);
    const auto ids = random_indices(n, v);
    compare(
        [&](Side& side) {
          const Tensor out = side.poisoned_rounded({n, c}), d_table = side.put(before, {v, c}), there = side.put(ids, {n});
          side.run([&](Context& context) {
            ops::embedding_forward(context, out, there, side.put_rounded(table, {v, c}));
            ops::embedding_backward(context, d_table, side.put_rounded(d_out, {n, c}), there);
          });
          return std::vector<Result>{{side.get_floats(out)}, {side.get_floats(d_table), false}};
        },
        "embedding of " + std::to_string(n));
  }
}

TEST_F(GpuRoundedOps, CrossEntropy) {
  for (const auto& [rows, columns] : Sizes{{1, 2}, {5, 7}, {67, 257}, {40, 50264}, {600, 1024}, {4, 128256}, {3, 151936}, {2, 151937}}) {
    const std::int64_t n = rows, v = columns;
    const Floats logits = random_rounded(n * v, 3.0f), scale{0.37f};
    auto targets = random_indices(n, v);
    if (n > 1) targets[static_cast<std::size_t>(n / 2)] = ops::ignore_index;
    compare(
        [&](Side& side) {
          const Tensor there = side.put_rounded(logits, {n, v}), sum = side.put(std::vector<double>{0.5}, {1}), at = side.put(targets, {n});
          side.run([&](Context& context) { ops::cross_entropy_forward_backward(context, sum, there, at, side.put(scale, {1})); });
          return std::vector<Result>{{side.get_floats(there)}, {{static_cast<float>(side.get<double>(sum)[0])}, false}};
        },
        "cross-entropy " + std::to_string(n) + " x " + std::to_string(v));
  }
}

TEST_F(GpuRoundedOps, Matmul) {
  struct Case {
    std::int64_t m, n, k, offset;
  };
  for (const Case& c : {Case{1, 1, 1, 0}, Case{3, 5, 7, 1}, Case{64, 48, 32, 0}, Case{130, 67, 257, 3}, Case{256, 512, 1024, 8},
                        Case{1024, 1152, 896, 0}, Case{5, 4, 0, 0}})
    for (int kind = 0; kind < 8; ++kind) {
      const bool a_transposed = (kind & 1) != 0, b_transposed = (kind & 2) != 0, exact_out = (kind & 4) != 0;
      const std::int64_t ar = a_transposed ? c.k : c.m, ac = a_transposed ? c.m : c.k, br = b_transposed ? c.n : c.k,
                         bc = b_transposed ? c.k : c.n;
      const Floats a = random_rounded(ar * (ac + c.offset)), b = random_rounded(br * (bc + c.offset)), before = random_rounded(c.m * c.n);
      compare(
          [&](Side& side) {
            const auto matrix = [&](const Floats& values, std::int64_t rows, std::int64_t columns, bool transposed) {
              const ops::Matrix part = ops::Matrix(side.put_rounded(values, {rows, columns + c.offset})).column_range(c.offset, columns);
              return transposed ? part.transpose() : part;
            };
            const ops::Matrix left = matrix(a, ar, ac, a_transposed), right = matrix(b, br, bc, b_transposed);
            const Tensor written = exact_out ? side.poisoned({c.m, c.n}) : side.poisoned_rounded({c.m, c.n});
            const Tensor added = exact_out ? side.put(before, {c.m, c.n}) : side.put_rounded(before, {c.m, c.n});
            side.run([&](Context& context) {
              ops::matmul(context, written, left, right);
              ops::matmul(context, added, left, right, true);
            });
            return std::vector<Result>{{side.get_floats(written), !exact_out}, {side.get_floats(added), !exact_out}};
          },
          "matmul " + std::to_string(c.m) + " x " + std::to_string(c.n) + " x " + std::to_string(c.k) + " kind " + std::to_string(kind));
    }
}

TEST_F(GpuRoundedOps, MatmulWithBiasAndGelu) {
  for (const auto& [rows, columns] : Sizes{{95, 7}, {64, 48}, {333, 256}}) {  // few numbers would miss a bound on their mean by chance
    const std::int64_t m = rows, n = columns, k = 72;
    const Floats a = random_rounded(m * k), b = random_rounded(n * k, 0.2f), bias = random_rounded(n), d = random_rounded(m * k),
                 weight = random_rounded(k * n, 0.2f), x = random_rounded(m * n, 2.0f);
    compare(
        [&](Side& side) {
          const Tensor left = side.put_rounded(a, {m, k}), right = side.put_rounded(b, {n, k}), added = side.put_rounded(bias, {n});
          const Tensor sum = side.poisoned_rounded({m, n}), before = side.poisoned_rounded({m, n}), out = side.poisoned_rounded({m, n}),
                       d_before = side.poisoned_rounded({m, n});
          side.run([&](Context& context) {
            ops::matmul_with_bias(context, sum, left, ops::Matrix(right).transpose(), added);
            ops::matmul_gelu(context, out, before, left, ops::Matrix(right).transpose(), added);
            ops::matmul_gelu_backward(context, d_before, side.put_rounded(d, {m, k}), side.put_rounded(weight, {k, n}),
                                      side.put_rounded(x, {m, n}));
          });
          // Where the library does not fuse them, the activation's input is rounded before.
          return std::vector<Result>{
              {side.get_floats(sum)}, {side.get_floats(before)}, {side.get_floats(out), true, 1.5}, {side.get_floats(d_before), true, 1.5}};
        },
        "matmul with gelu " + std::to_string(m) + " x " + std::to_string(n));
  }
}

// The last runs in the kernels that do both, where the build has them: rows and columns that no tile divides.
TEST_F(GpuRoundedOps, MatmulWithSwiglu) {
  for (const auto& [rows, columns] : Sizes{{95, 7}, {64, 48}, {2100, 2056}}) {
    const std::int64_t m = rows, f = columns, k = 72;
    const Floats a = random_rounded(m * k), b = random_rounded(2 * f * k, 0.2f), d = random_rounded(m * k),
                 weight = random_rounded(k * f, 0.2f), x = random_rounded(m * 2 * f, 2.0f);
    compare(
        [&](Side& side) {
          const Tensor left = side.put_rounded(a, {m, k}), right = side.put_rounded(b, {2 * f, k}), there = side.put_rounded(x, {m, 2 * f});
          const Tensor out = side.poisoned_rounded({m, f}), gate_up = side.poisoned_rounded({m, 2 * f}),
                       room = side.poisoned_rounded({m, f}), d_gate_up = side.poisoned_rounded({m, 2 * f});
          side.run([&](Context& context) {
            ops::matmul_swiglu(context, out, gate_up, left, ops::Matrix(right).transpose());
            ops::matmul_swiglu_backward(context, d_gate_up, room, side.put_rounded(d, {m, k}), side.put_rounded(weight, {k, f}), there);
          });
          // The activation's input is rounded before, or the gradient of its output.
          return std::vector<Result>{
              {side.get_floats(gate_up)}, {side.get_floats(out), true, 1.5}, {side.get_floats(d_gate_up), true, 1.5}};
        },
        "matmul with SwiGLU " + std::to_string(m) + " x " + std::to_string(f));
  }
}

TEST_F(GpuRoundedOps, BothGradientsOfANorm) {
  for (const auto& [rows, columns] : row_sizes) {
    const std::int64_t r = rows, c = columns;
    const Floats x = random_rounded(r * c), weight = random_rounded(c), d_out = random_rounded(r * c), d_residual = random_rounded(r * c),
                 before = random(c);
    compare(
        [&](Side& side) {
          const Tensor there = side.put_rounded(x, {r, c}), weights = side.put_rounded(weight, {c}), d = side.put_rounded(d_out, {r, c}),
                       residual = side.put_rounded(d_residual, {r, c}), out = side.poisoned_rounded({r, c}), mean = side.poisoned({r}),
                       rstd = side.poisoned({r}), d_x = side.poisoned_rounded({r, c}), d_weight = side.put(before, {c}),
                       d_x_centred = side.poisoned_rounded({r, c}), d_weight_centred = side.put(before, {c}),
                       d_bias = side.put(before, {c});
          side.run([&](Context& context) {
            ops::rms_norm_forward(context, out, Tensor(), rstd, there, Tensor(), weights, 1e-5f);
            ops::rms_norm_backward(context, d_x, d_weight, d, Tensor(), there, rstd, weights);
            ops::layer_norm_forward(context, out, Tensor(), mean, rstd, there, Tensor(), weights, weights, 1e-5f);
            ops::layer_norm_backward(context, d_x_centred, d_weight_centred, d_bias, d, residual, there, mean, rstd, weights);
          });
          return std::vector<Result>{{side.get_floats(d_x)},
                                     {side.get_floats(d_weight), false},
                                     {side.get_floats(d_x_centred)},
                                     {side.get_floats(d_weight_centred), false},
                                     {side.get_floats(d_bias), false}};
        },
        "both gradients " + std::to_string(r) + " x " + std::to_string(c));
  }
}

// Gradients kept in bf16: what was there and the sum are added in fp32 and rounded once.
TEST_F(GpuRoundedOps, GradientsOfHalvesAreRoundedOnce) {
  for (const auto& [rows, columns] : Sizes{{37, 64}, {20, 131}, {1000, 2048}, {517, 1051}, {9, 5000}}) {
    const std::int64_t r = rows, c = columns, vocabulary = 13;
    const Floats x = random_rounded(r * c), weight = random_rounded(c), d_out = random_rounded(r * c), before = random_rounded(c),
                 table = random_rounded(vocabulary * c);
    auto ids = random_indices(r, vocabulary);
    for (std::size_t i = 0; i < ids.size(); i += 2) ids[i] = 5;
    expect_rounded_equal(
        [&](Side& side) {
          const Tensor there = side.put_rounded(x, {r, c}), weights = side.put_rounded(weight, {c}), d = side.put_rounded(d_out, {r, c}),
                       out = side.poisoned_rounded({r, c}), d_x = side.poisoned_rounded({r, c}), mean = side.poisoned({r}),
                       rstd = side.poisoned({r});
          std::vector<Tensor> gradients;
          for (int i = 0; i < 8; ++i) gradients.push_back(side.put_rounded(before, {c}));
          const Tensor d_table = side.put_rounded(table, {vocabulary, c});
          side.run([&](Context& context) {
            ops::rms_norm_forward(context, out, Tensor(), rstd, there, Tensor(), weights, 1e-5f);
            ops::rms_norm_backward_weight(context, gradients[0], d, there, rstd);
            ops::rms_norm_backward(context, d_x, gradients[1], d, Tensor(), there, rstd, weights);
            ops::layer_norm_forward(context, out, Tensor(), mean, rstd, there, Tensor(), weights, weights, 1e-5f);
            ops::layer_norm_backward_weight(context, gradients[2], gradients[3], d, there, mean, rstd);
            ops::layer_norm_backward(context, d_x, gradients[4], gradients[5], d, Tensor(), there, mean, rstd, weights);
            ops::bias_backward(context, gradients[6], d, c);
            ops::embedding_backward(context, d_table, d, side.put(ids, {r}));
          });
          std::vector<Result> results;
          for (int i = 0; i < 7; ++i) results.push_back({side.get_floats(gradients[static_cast<std::size_t>(i)])});
          results.push_back({side.get_floats(d_table)});
          return results;
        },
        "gradients of halves " + std::to_string(r) + " x " + std::to_string(c));
  }
}

// A long sum into few elements, which the library would like to cut: its parts are not rounded.
TEST_F(GpuRoundedOps, ALongSumOfHalvesIsRoundedOnce) {
  for (const auto& [columns, k] : Sizes{{48, 20000}, {256, 16384}, {1536, 8192}}) {
    const std::int64_t m = 64, n = columns, depth = k;
    const Floats a = random_rounded(depth * m), b = random_rounded(depth * n), before = random_rounded(m * n, 50.0f);
    expect_rounded_equal(
        [&](Side& side) {
          const Tensor left = side.put_rounded(a, {depth, m}), right = side.put_rounded(b, {depth, n});
          const Tensor written = side.poisoned_rounded({m, n}), added = side.put_rounded(before, {m, n});
          side.run([&](Context& context) {
            ops::matmul(context, written, ops::Matrix(left).transpose(), right);
            ops::matmul(context, added, ops::Matrix(left).transpose(), right, /*accumulate=*/true);
          });
          return std::vector<Result>{{side.get_floats(written)}, {side.get_floats(added)}};
        },
        "a sum of " + std::to_string(depth) + " into " + std::to_string(m) + " x " + std::to_string(n));
  }
}

TEST_F(GpuRoundedOps, SumOfSquaresOfHalves) {
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{4097}, std::int64_t{1000000}}) {
    const Floats values = random_rounded(count);
    std::vector<double> sums;
    for (Side* side : {cpu.get(), gpu.get()}) {
      side->precision = DType::bf16;
      const Tensor sum = side->put(std::vector<double>{2.0}, {1}), there = side->put_rounded(values, {count});
      side->run([&](Context& context) { ops::sum_of_squares(context, sum, there); });
      sums.push_back(side->get<double>(sum)[0]);
    }
    EXPECT_NEAR(sums[1], sums[0], 1e-12 * sums[0]) << count << ", seed " << seed;
  }
}

TEST_F(GpuRoundedOps, AdamWInEveryPrecision) {
  const std::int64_t count = 10007;
  const Floats w = random_rounded(count), g = random_rounded(count), m = random_rounded(count, 0.1f);
  Floats v = random(count, 0.1f), scalars{1e-2f, 0.19f, 0.0975f, 0.7f, 3.0f};
  for (float& value : v) value = to_float(to_bfloat16(value * value));
  scalars.resize(ops::adamw_scalars);
  for (const DType master : {DType::f32, DType::bf16})
    for (const DType state : {DType::f32, DType::bf16})
      for (const auto& [gradient, first] :
           {std::pair(DType::f32, 0u), std::pair(DType::f32, 3u), std::pair(DType::bf16, 0u), std::pair(DType::bf16, 3u)}) {
        std::vector<std::vector<Floats>> results;
        for (Side* side : {cpu.get(), gpu.get()}) {
          const auto put = [&](const Floats& values, DType dtype) {
            side->precision = dtype;
            return side->put_rounded(values, {count});
          };
          const Tensor weights = put(w, master), first_moment = put(m, state), second_moment = put(v, state), gradients = put(g, gradient);
          side->precision = DType::bf16;
          const Tensor rounded = side->poisoned_rounded({count});
          side->run([&](Context& context) {
            ops::adamw(context, {weights, rounded, gradients, first_moment, second_moment}, side->put(scalars, {ops::adamw_scalars}),
                       {0.9f, 0.95f, 1e-8f, 0.1f}, {5, 77, first});
          });
          results.push_back(
              {side->get_floats(weights), side->get_floats(rounded), side->get_floats(first_moment), side->get_floats(second_moment)});
        }
        // The same random bits: where fp32's last bit differs a value may still fall on the other side, once in a few thousand.
        for (std::size_t i = 0; i < results[0].size(); ++i) {
          std::int64_t different = 0;
          for (std::size_t j = 0; j < results[0][i].size(); ++j)
            if (std::abs(results[0][i][j] - results[1][i][j]) > 1e-5f * std::abs(results[0][i][j])) ++different;
          EXPECT_LE(different, count / 500) << "result " << i << " of " << dtype_name(master) << " and " << dtype_name(state) << ", seed "
                                            << seed;
        }
      }
}

TEST_F(GpuRoundedOps, Attention) {
  // B, T, H, Hkv, D; widths that the library takes and ones that it does not.
  for (const auto& s : std::vector<std::array<std::int64_t, 5>>{{1, 1, 1, 1, 2},
                                                                {2, 13, 6, 2, 6},
                                                                {2, 100, 3, 1, 33},
                                                                {2, 256, 4, 4, 64},
                                                                {1, 1024, 14, 2, 64},
                                                                {3, 333, 6, 2, 128},
                                                                {1, 65, 2, 2, 200}}) {
    ops::AttentionShape shape;
    shape.batch = s[0], shape.query_length = shape.key_length = s[1], shape.heads = s[2], shape.kv_heads = s[3], shape.head_dim = s[4];
    const std::int64_t n = s[0] * s[1], queries = s[2] * s[4], keys = s[3] * s[4], columns = queries + 2 * keys;
    shape.query_stride = shape.key_stride = columns, shape.out_stride = queries;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(s[4]));
    const Floats qkv = random_rounded(n * columns), d_out = random_rounded(n * queries);
    expect_rounded_equal(
        [&](Side& side) {
          const Tensor there = side.put_rounded(qkv, {n, columns}), d = side.put_rounded(d_out, {n, queries}),
                       out = side.poisoned_rounded({n, queries}), lse = side.poisoned({s[0], s[2], s[1]}),
                       d_qkv = side.poisoned_rounded({n, columns});
          const auto part = [&](const Tensor& whole, std::int64_t begin, std::int64_t count) {
            const ops::Matrix view = ops::Matrix(whole).column_range(begin, count);
            return Tensor(view.data, view.dtype, {n, count});
          };
          const auto q = [&](const Tensor& whole) { return part(whole, 0, queries); };
          const auto k = [&](const Tensor& whole) { return part(whole, queries, keys); };
          const auto v = [&](const Tensor& whole) { return part(whole, queries + keys, keys); };
          side.run([&](Context& context) {
            ops::attention_forward(context, shape, out, lse, q(there), k(there), v(there), Tensor());
            ops::attention_backward(context, shape, q(d_qkv), k(d_qkv), v(d_qkv), d, q(there), k(there), v(there), out, lse, Tensor());
          });
          // Probabilities and their gradients are rounded on the way: section 5's 1e-2 is the bound then.
          return std::vector<Result>{{side.get_floats(out), true, 4}, {side.get_floats(lse), true, 4}, {side.get_floats(d_qkv), true, 4}};
        },
        "attention T " + std::to_string(s[1]) + " D " + std::to_string(s[4]));
  }
}

}  // namespace
}  // namespace baleen::testing
