#include "ops/attention_merge.h"

#include "ops/attention.h"
#include "ops/support.h"
#include "ops/targets.h"

namespace baleen::ops::testing {
namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();

// Attention over keys 0 to 29 joined with that over keys 30 to 69 is attention over all 70, for queries 10 to 49 of 60 that see them all.
TEST(AttentionMerge, TwoSetsOfKeysMakeOne) {
  for (const bool portable : {false, true}) {
    const InstructionsScope instructions(portable);
    const ThreadsScope threads(2);
    constexpr std::int64_t batch = 2, length = 60, first = 10, rows = 40, heads = 3, head_dim = 21, keys = 70, split = 30,
                           stride = heads * head_dim;
    AttentionShape shape{.batch = batch, .query_length = rows, .key_length = keys, .heads = heads, .kv_heads = heads, .head_dim = head_dim};
    shape.query_stride = shape.key_stride = shape.out_stride = stride;
    shape.query_offset = keys;
    shape.scale = 0.5f;
    Array q = Array::normal(1, batch * rows * stride), k = Array::normal(2, batch * keys * stride),
          v = Array::normal(3, batch * keys * stride);
    Array want(batch * rows * stride), want_lse(batch * heads * rows);
    cpu::attention_forward(shape, want.flat(), want_lse.flat(), q.flat(), k.flat(), v.flat(), Tensor(), nullptr);

    Array part(want.size()), part_lse(want_lse.size()), early(want.size()), early_lse(want_lse.size());
    shape.key_batch_stride = keys * stride;
    shape.key_length = split;
    cpu::attention_forward(shape, early.flat(), early_lse.flat(), q.flat(), k.flat(), v.flat(), Tensor(), nullptr);
    shape.key_length = keys - split;
    cpu::attention_forward(shape, part.flat(), part_lse.flat(), q.flat(), k.from(split * stride), v.from(split * stride), Tensor(),
                           nullptr);

    // The sums lie in sequences of 60 tokens, further apart than they are wide.
    constexpr std::int64_t wide = stride + 5;
    Array out(batch * length * wide), lse(batch * heads * length);
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t h = 0; h < heads; ++h) {
          lse[(b * heads + h) * length + first + row] = early_lse[(b * heads + h) * rows + row];
          for (std::int64_t i = 0; i < head_dim; ++i)
            out[(b * length + first + row) * wide + h * head_dim + i] = early[(b * rows + row) * stride + h * head_dim + i];
        }
    const AttentionMergeShape merge{batch, length, first, rows, heads, head_dim, wide};
    Array half_out = out, half_lse = lse;
    cpu::attention_merge(merge, out.flat(), lse.flat(), part.flat(), part_lse.flat());
    HalfArray half_part(part);
    cpu::attention_merge(merge, half_out.flat(), half_lse.flat(), half_part.flat(), part_lse.flat());

    std::vector<double> got, got_lse, got_half;
    std::int64_t untouched = 0;
    for (std::int64_t i = 0; i < out.size(); ++i) untouched += std::isnan(out[i]);
    EXPECT_EQ(untouched, out.size() - want.size());
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < stride; ++i) {
          got.push_back(out[(b * length + first + row) * wide + i]);
          got_half.push_back(half_out[(b * length + first + row) * wide + i]);
        }
    for (std::int64_t bh = 0; bh < batch * heads; ++bh)
      for (std::int64_t row = 0; row < rows; ++row) got_lse.push_back(lse[bh * length + first + row]);
    EXPECT_LE(relative_error(got, want.doubles()), 1e-6);
    EXPECT_LE(relative_error(got_lse, want_lse.doubles()), 1e-6);
    EXPECT_LE(relative_error(got_half, want.doubles()), 3e-3);  // of rounding the part
    EXPECT_GE(relative_error(got_half, want.doubles()), 1e-5);
    EXPECT_TRUE(half_lse.same_bits(lse));
  }
}

// One token, one head of two elements: what either side without keys leaves of the other.
TEST(AttentionMerge, SidesThatSawNothing) {
  const AttentionMergeShape shape{1, 1, 0, 1, 1, 2, 2};
  struct Case {
    float lse, part_lse, want_lse;
    std::array<float, 2> want;
  };
  const float half = 3.0f + std::log(2.0f);
  for (const Case& c :
       {Case{nothing, 3.0f, 3.0f, {4.0f, 5.0f}}, Case{3.0f, nothing, 3.0f, {1.0f, 2.0f}}, Case{nothing, nothing, nothing, {1.0f, 2.0f}},
        Case{3.0f, 3.0f, half, {2.5f, 3.5f}}, Case{200.0f, -200.0f, 200.0f, {1.0f, 2.0f}}}) {
    Array out(2), part(2), lse(1, c.lse), part_lse(1, c.part_lse);
    out[0] = 1, out[1] = 2, part[0] = 4, part[1] = 5;
    cpu::attention_merge(shape, out.flat(), lse.flat(), part.flat(), part_lse.flat());
    EXPECT_FLOAT_EQ(lse[0], c.want_lse);
    EXPECT_FLOAT_EQ(out[0], c.want[0]);
    EXPECT_FLOAT_EQ(out[1], c.want[1]);
  }
}

TEST(AttentionMerge, NumbersThatAreNotStay) {
  const AttentionMergeShape shape{1, 1, 0, 1, 1, 1, 1};
  for (const bool in_part : {false, true}) {
    Array out(1, 1.0f), part(1, 1.0f), lse(1, in_part ? 0.0f : poison), part_lse(1, in_part ? poison : 0.0f);
    cpu::attention_merge(shape, out.flat(), lse.flat(), part.flat(), part_lse.flat());
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(lse[0]));
  }
}

TEST(AttentionMerge, RefusesRowsOutsideTheSequence) {
  Array out(4), part(4), lse(2), part_lse(2);
  EXPECT_THROW(cpu::attention_merge({1, 2, 1, 2, 1, 2, 2}, out.flat(), lse.flat(), part.flat(), part_lse.flat()), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
