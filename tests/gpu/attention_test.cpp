// GPU attention, both ways, against the CPU's.
#include <cmath>

#include "gpu/support.h"
#include "ops/attention.h"

namespace baleen::testing {
namespace {

using ops::AttentionShape;
using ops::Context;

class GpuAttention : public OnBothDevices {
 protected:
  // Forward and backward on fused rows: q, k and v lie side by side where the lengths are equal.
  std::vector<Floats> run(Side& side, const AttentionShape& shape, const Floats& q, const Floats& k, const Floats& v, const Floats& d_out,
                          const std::vector<std::int32_t>& documents) {
    const auto flat = [](const Floats& values) { return static_cast<std::int64_t>(values.size()); };
    const Tensor q_there = side.put(q, {flat(q)}), k_there = side.put(k, {flat(k)}), v_there = side.put(v, {flat(v)}),
                 d_there = side.put(d_out, {flat(d_out)});
    const Tensor begins = documents.empty() ? Tensor() : side.put(documents, {static_cast<std::int64_t>(documents.size())});
    // Columns between the heads' rows belong to others: they start as zeros and must stay so.
    const auto zeros = [&](const Floats& like) { return side.put(Floats(like.size(), 0.0f), {flat(like)}); };
    const Tensor out = zeros(d_out), lse = side.poisoned({shape.batch, shape.heads, shape.query_length}), d_q = zeros(q), d_k = zeros(k),
                 d_v = zeros(v);
    side.run([&](Context& context) {
      ops::attention_forward(context, shape, out, lse, q_there, k_there, v_there, begins);
      ops::attention_backward(context, shape, d_q, d_k, d_v, d_there, q_there, k_there, v_there, out, lse, begins);
    });
    Floats log_sums = side.get(lse);
    for (float& value : log_sums)
      if (std::isinf(value) && value < 0) value = -1e6f;  // a query that sees nothing: both must say so
    return {side.get(out), log_sums, side.get(d_q), side.get(d_k), side.get(d_v)};
  }

  void compare(AttentionShape shape, bool packed, const std::string& what) {
    shape.query_stride = shape.heads * shape.head_dim + 3;
    shape.key_stride = shape.kv_heads * shape.head_dim + 1;
    shape.out_stride = shape.heads * shape.head_dim + 2;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const std::int64_t queries = shape.batch * shape.query_length, keys = shape.batch * shape.key_length;
    std::vector<std::int32_t> documents;
    for (std::int64_t i = 0; packed && i < queries; ++i) {
      const std::int64_t position = shape.query_offset + i % shape.query_length;
      documents.push_back(static_cast<std::int32_t>(position / 13 * 13));
    }
    const Floats q = random(queries * shape.query_stride), k = random(keys * shape.key_stride), v = random(keys * shape.key_stride);
    const Floats d_out = random(queries * shape.out_stride);
    expect_equal([&](Side& side) { return run(side, shape, q, k, v, d_out, documents); }, what);
  }
};

TEST_F(GpuAttention, Shapes) {
  // B, Tq, Tk, H, Hkv, D
  for (const auto& s : std::vector<std::array<std::int64_t, 6>>{{1, 1, 1, 1, 1, 2},
                                                                {2, 13, 13, 6, 2, 6},
                                                                {1, 33, 33, 4, 4, 32},
                                                                {2, 100, 100, 3, 1, 33},
                                                                {1, 257, 257, 4, 2, 64},
                                                                {1, 70, 70, 2, 1, 128},
                                                                {1, 65, 65, 2, 2, 200},
                                                                {1, 40, 40, 1, 1, 256}})
    for (const bool packed : {false, true}) {
      AttentionShape shape;
      shape.batch = s[0], shape.query_length = s[1], shape.key_length = s[2], shape.heads = s[3], shape.kv_heads = s[4],
      shape.head_dim = s[5];
      compare(shape, packed, "T " + std::to_string(s[1]) + " D " + std::to_string(s[5]) + (packed ? " packed" : ""));
    }
}

TEST_F(GpuAttention, OffsetsOfACacheAndOfContextParallelRanks) {
  for (const auto& [queries, keys, query_offset, key_offset] :
       std::vector<std::array<std::int64_t, 4>>{{1, 90, 89, 0}, {20, 90, 70, 0}, {40, 50, 0, 20}, {64, 64, 0, 64}, {64, 64, 64, 0}}) {
    AttentionShape shape;
    shape.batch = 2, shape.query_length = queries, shape.key_length = keys, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 16;
    shape.query_offset = query_offset, shape.key_offset = key_offset;
    compare(shape, false, "offsets " + std::to_string(query_offset) + " " + std::to_string(key_offset));
  }
}

TEST_F(GpuAttention, KeysThatNobodySeesDoNotReachTheResult) {
  AttentionShape shape;
  shape.batch = 1, shape.query_length = 40, shape.key_length = 50, shape.heads = shape.kv_heads = 1, shape.head_dim = 8;
  shape.query_stride = shape.key_stride = shape.out_stride = 8, shape.scale = 0.3f;
  Floats k = random(400), v = random(400);
  for (std::size_t i = 320; i < 400; ++i) k[i] = v[i] = std::numeric_limits<float>::quiet_NaN();
  const Floats q = random(320), d_out = random(320);
  for (const Floats& result : run(*gpu, shape, q, k, v, d_out, {}))
    for (const float value : result) EXPECT_TRUE(std::isfinite(value));
}

TEST_F(GpuAttention, TheSameBitsTwice) {
  AttentionShape shape;
  shape.batch = 2, shape.query_length = shape.key_length = 300, shape.heads = 8, shape.kv_heads = 2, shape.head_dim = 64;
  shape.query_stride = shape.out_stride = 512, shape.key_stride = 128, shape.scale = 0.125f;
  const Floats q = random(600 * 512), k = random(600 * 128), v = random(600 * 128), d_out = random(600 * 512);
  EXPECT_EQ(run(*gpu, shape, q, k, v, d_out, {}), run(*gpu, shape, q, k, v, d_out, {}));
}

}  // namespace
}  // namespace baleen::testing
