// The operations of ring attention on a GPU against the CPU's: moving rows, joining parts, and the ring's own attention shapes.
#include <cmath>

#include "gpu/support.h"
#include "ops/attention.h"
#include "ops/attention_merge.h"
#include "ops/row_blocks.h"

namespace baleen::testing {
namespace {

using ops::Context;

class GpuRingOps : public OnBothDevices {};

TEST_F(GpuRingOps, MoveRows) {
  constexpr std::int64_t to_size = 3 * 5000, from_size = 3 * 4000;
  const ops::RowBlockShape shape{3, 17, 201};
  const Floats before = random_rounded(to_size), values = random_rounded(from_size);
  for (const bool add : {false, true})
    expect_equal(
        [&](Side& side) {
          const Tensor to = side.put(before, {to_size}), from = side.put(values, {from_size});
          side.run([&](Context& context) {
            if (add)
              ops::add_rows(context, shape, {to, 5000, 207}, {from, 4000, 203});
            else
              ops::copy_rows(context, shape, {to, 5000, 207}, {from, 4000, 203});
          });
          return std::vector<Floats>{side.get(to)};
        },
        add ? "add rows" : "copy rows");
}

// From and to bf16: the same bits as the CPU's.
TEST_F(GpuRingOps, MoveRowsOfEitherDtype) {
  const ops::RowBlockShape shape{2, 9, 33};
  const Floats before = random(2 * 400), values = random(2 * 400);
  for (const auto& [to_dtype, from_dtype] :
       {std::pair{DType::bf16, DType::f32}, std::pair{DType::f32, DType::bf16}, std::pair{DType::bf16, DType::bf16}})
    for (const bool add : {false, true}) {
      const auto op = [&, to_dtype = to_dtype, from_dtype = from_dtype](Side& side) {
        side.precision = to_dtype;
        const Tensor to = side.put_rounded(before, {2 * 400});
        side.precision = from_dtype;
        const Tensor from = side.put_rounded(values, {2 * 400});
        side.run([&](Context& context) {
          if (add)
            ops::add_rows(context, shape, {to, 400, 40}, {from, 399, 41});
          else
            ops::copy_rows(context, shape, {to, 400, 40}, {from, 399, 41});
        });
        return side.get_floats(to);
      };
      EXPECT_EQ(op(*cpu), op(*gpu)) << dtype_name(to_dtype) << " from " << dtype_name(from_dtype) << (add ? " added" : "");
    }
}

TEST_F(GpuRingOps, AttentionMerge) {
  for (const std::int64_t head_dim : {5, 64, 130}) {
    const ops::AttentionMergeShape shape{2, 40, 13, 21, 3, head_dim, 3 * head_dim + 4};
    const Floats out = random(2 * 40 * shape.out_stride), part = random_rounded(2 * 21 * 3 * head_dim);
    Floats lse = random(2 * 3 * 40, 4.0f), part_lse = random(2 * 3 * 21, 4.0f);
    part_lse[5] = -INFINITY, part_lse[6] = 300.0f, lse[13 + 9] = -INFINITY;
    for (const DType precision : {DType::f32, DType::bf16})
      expect_equal(
          [&](Side& side) {
            side.precision = precision;
            const Tensor sum = side.put(out, {2 * 40 * shape.out_stride}), log_sums = side.put(lse, {2, 3, 40});
            side.run([&](Context& context) {
              ops::attention_merge(context, shape, sum, log_sums, side.put_rounded(part, {2 * 21, 3, head_dim}),
                                   side.put(part_lse, {2, 3, 21}));
            });
            return std::vector<Floats>{side.get(sum), side.get(log_sums)};
          },
          "merging attention, heads of " + std::to_string(head_dim));
  }
}

// Queries after all keys, keys that are the first part of each sequence: what the ring asks of attention, and no library's plain mask.
TEST_F(GpuRingOps, AttentionWithoutAMask) {
  for (const auto& [queries, keys] : std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 32}, {32, 64}, {30, 60}}) {
    gpu->precision = DType::f32;
    ops::AttentionShape shape{.batch = 2, .query_length = queries, .key_length = keys, .heads = 4, .kv_heads = 2, .head_dim = 32};
    const std::int64_t held = std::max(queries, keys);  // of the keys' sequences
    shape.query_stride = shape.out_stride = 4 * 32;
    shape.key_stride = 2 * 32;
    shape.key_batch_stride = held * shape.key_stride;
    shape.query_offset = keys;
    shape.scale = 1.0f / std::sqrt(32.0f);
    const Floats q = random_rounded(2 * queries * 128), k = random_rounded(2 * held * 64), v = random_rounded(2 * held * 64),
                 d_out = random_rounded(2 * queries * 128);
    const auto op = [&](Side& side) {
      const auto size = [](const Floats& values) { return static_cast<std::int64_t>(values.size()); };
      const auto put = [&](const Floats& values) { return side.put_rounded(values, {size(values)}); };
      const auto zeros = [&](const Floats& like) { return side.put_rounded(Floats(like.size(), 0.0f), {size(like)}); };
      const Tensor out = zeros(q), lse = side.poisoned({2, 4, queries}), d_q = zeros(q), d_k = zeros(k), d_v = zeros(v);
      side.run([&](Context& context) {
        ops::attention_forward(context, shape, out, lse, put(q), put(k), put(v), Tensor());
        ops::attention_backward(context, shape, d_q, d_k, d_v, put(d_out), put(q), put(k), put(v), out, lse, Tensor());
      });
      return std::array<Floats, 5>{side.get_floats(out), side.get(lse), side.get_floats(d_q), side.get_floats(d_k), side.get_floats(d_v)};
    };
    const std::string what = std::to_string(queries) + " queries, " + std::to_string(keys) + " keys";
    expect_equal(
        [&](Side& side) {
          const auto results = op(side);
          return std::vector<Floats>(results.begin(), results.end());
        },
        what);
    // Backward starts from the rounded output.
    expect_rounded_equal(
        [&](Side& side) {
          const auto [out, lse, d_q, d_k, d_v] = op(side);
          return std::vector<Result>{{out}, {lse, false}, {d_q, true, 4}, {d_k, true, 4}, {d_v, true, 4}};
        },
        what);
  }
}

}  // namespace
}  // namespace baleen::testing
