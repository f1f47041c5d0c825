#include <omp.h>

#include <algorithm>

#include "ops/cpu/attention_halves.h"
#include "ops/cpu/copy_rows.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#include "ops/cpu/transpose.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_halves_backward.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/attention_tiles-inl.h"

namespace baleen::ops::cpu {
#ifndef BALEEN_OPS_CPU_ATTENTION_HALVES_BACKWARD_ONCE
#define BALEEN_OPS_CPU_ATTENTION_HALVES_BACKWARD_ONCE

// A thread's memory. Scores lie a row a key: the gradients of keys and values are then products of matrices as they lie.
struct HalvesBackward {
  BFloat16 *k, *v;         // [T, D] of one head
  float *d_k, *d_v;        // [T, D]
  BFloat16 *q, *d_out;     // [tile, D]
  float* d_q;              // [tile, D]
  float *scores, *d_p;     // [keys, queries]
  BFloat16 *p, *d_s;       // [keys, queries]: the probabilities and the gradient of the scores
  BFloat16* d_s_by_query;  // [queries, keys]
  float *lse, *delta;      // [queries]: the log-sum-exp in units of log 2; Σ ∂out ∘ out
  std::byte* scratchpad;

  HalvesBackward(const AttentionShape& shape, std::int64_t tile, std::size_t scratchpad_bytes, Arena& arena) {
    for (BFloat16** whole : {&k, &v}) *whole = take<BFloat16>(arena, "attention tiles", shape.key_length * shape.head_dim);
    for (float** whole : {&d_k, &d_v}) *whole = take<float>(arena, "attention tiles", shape.key_length * shape.head_dim);
    for (BFloat16** rows : {&q, &d_out}) *rows = take<BFloat16>(arena, "attention tiles", tile * shape.head_dim);
    d_q = take<float>(arena, "attention tiles", tile * shape.head_dim);
    for (float** square : {&scores, &d_p}) *square = take<float>(arena, "attention tiles", tile * tile);
    for (BFloat16** square : {&p, &d_s, &d_s_by_query}) *square = take<BFloat16>(arena, "attention tiles", tile * tile);
    for (float** row : {&lse, &delta}) *row = take<float>(arena, "attention tiles", tile);
    scratchpad = reinterpret_cast<std::byte*>(take<std::uint8_t>(arena, "attention tiles", static_cast<std::int64_t>(scratchpad_bytes)));
  }
};

#endif
}  // namespace baleen::ops::cpu

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// delta and lse of a tile of queries whose ∂out is in t; out and lse stand at its first.
void HalvesQueries(const AttentionShape& shape, std::int64_t queries, const BFloat16* out, const float* lse, const HalvesBackward& t) {
  QueryStatistics(queries, shape.head_dim, t.d_out, shape.head_dim, out, shape.out_stride, lse, t.delta, t.lse);
}

// p and d_s of scores and d_p, which is ∂P. On the diagonal key r is seen by queries from r on. queries counts whole vectors.
void HalvesGradients(std::int64_t queries, std::int64_t keys, bool diagonal, float factor, const HalvesBackward& t) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const FloatVec by = hn::Set(d, factor);
  for (std::int64_t key = 0; key < keys; ++key) {
    const std::int64_t row = key * queries, begin = diagonal ? key / lanes * lanes : 0;
    std::fill_n(t.p + row, begin, BFloat16());
    std::fill_n(t.d_s + row, begin, BFloat16());
    const auto gradient = [&](std::int64_t query, auto seen) HWY_ATTR {
      const std::int64_t at = row + query;
      const FloatVec exponent = hn::MulSub(hn::LoadU(d, t.scores + at), by, hn::LoadU(d, t.lse + query));
      const FloatVec p = seen(Exp2(exponent));
      StoreVecOfHalves(p, t.p + at, Whole());
      StoreVecOfHalves(hn::Mul(p, hn::Sub(hn::LoadU(d, t.d_p + at), hn::LoadU(d, t.delta + query))), t.d_s + at, Whole());
    };
    std::int64_t query = begin;
    if (diagonal) {
      const auto hidden = hn::FirstN(d, static_cast<std::size_t>(key - begin));
      gradient(query, [&](FloatVec p) HWY_ATTR { return hn::IfThenZeroElse(hidden, p); });
      query += lanes;
    }
    for (; query < queries; query += lanes) gradient(query, [](FloatVec p) HWY_ATTR { return p; });
  }
}

void HalvesStore(std::int64_t rows, std::int64_t head_dim, float factor, const float* from, BFloat16* to, std::int64_t stride) {
  UnpackScaled(rows, head_dim, factor, from, to, stride);
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(HalvesQueries);
HWY_EXPORT(HalvesGradients);
HWY_EXPORT(HalvesStore);

namespace {

std::size_t backward_scratchpad(const AttentionShape& shape, const HalvesTiles& tiles) {
  const OneThread alone;
  std::size_t bytes = 0;
  tiles.for_sizes([&](std::int64_t queries, std::int64_t keys) {
    const Matrix q = dense(nullptr, DType::bf16, queries, shape.head_dim), k = dense(nullptr, DType::bf16, keys, shape.head_dim);
    bytes = std::max({bytes, scratchpad_of(dense(nullptr, DType::f32, keys, queries), k, q.transpose()),
                      scratchpad_of(dense(nullptr, DType::f32, keys, shape.head_dim), dense(nullptr, DType::bf16, keys, queries), q),
                      scratchpad_of(dense(nullptr, DType::f32, queries, shape.head_dim), dense(nullptr, DType::bf16, queries, keys), k)});
  });
  return bytes;
}

// What one pair of tiles adds to the gradients of queries, keys and values. `other` ≤ `tile` are the places of keys and of queries.
void backward_pair(const AttentionShape& shape, const HalvesTiles& tiles, std::int64_t tile, std::int64_t other, bool first_of_keys,
                   const HalvesBackward& t) {
  const std::int64_t queries = tiles.size(tile), keys = tiles.size(other), head_dim = shape.head_dim, at = other * tiles.tile() * head_dim;
  const Matrix q = dense(t.q, DType::bf16, queries, head_dim), d_out = dense(t.d_out, DType::bf16, queries, head_dim);
  const Matrix k = dense(t.k + at, DType::bf16, keys, head_dim), v = dense(t.v + at, DType::bf16, keys, head_dim);
  const Matrix p = dense(t.p, DType::bf16, keys, queries), d_s = dense(t.d_s, DType::bf16, keys, queries),
               d_s_by_query = dense(t.d_s_by_query, DType::bf16, queries, keys);
  multiply(dense(t.scores, DType::f32, keys, queries), k, q.transpose(), false, t.scratchpad);
  multiply(dense(t.d_p, DType::f32, keys, queries), v, d_out.transpose(), false, t.scratchpad);
  HWY_DYNAMIC_DISPATCH(HalvesGradients)(queries, keys, other == tile, shape.scale * 1.44269504088896340736f, t);
  transpose_copy(d_s_by_query, d_s);
  multiply(dense(t.d_v + at, DType::f32, keys, head_dim), p, d_out, !first_of_keys, t.scratchpad);
  multiply(dense(t.d_k + at, DType::f32, keys, head_dim), d_s, q, !first_of_keys, t.scratchpad);
  multiply(dense(t.d_q, DType::f32, queries, head_dim), d_s_by_query, k, other > 0, t.scratchpad);
}

}  // namespace

std::size_t halves_backward_workspace(const AttentionShape& shape) {
  const HalvesTiles tiles(shape);
  return static_cast<std::size_t>(omp_get_max_threads()) *
         thread_bytes<HalvesBackward>(shape, tiles.tile(), backward_scratchpad(shape, tiles));
}

void halves_backward(const AttentionShape& shape, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v, const Tensor& d_out,
                     const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse, void* workspace) {
  const HalvesTiles tiles(shape);
  const std::size_t scratchpad_bytes = backward_scratchpad(shape, tiles),
                    bytes = thread_bytes<HalvesBackward>(shape, tiles.tile(), scratchpad_bytes);
  const std::int64_t group = shape.heads / shape.kv_heads, head_dim = shape.head_dim, length = shape.key_length;
  const auto rows = [&](const Tensor& of, std::int64_t at, std::int64_t count, std::int64_t stride) {
    return Matrix(of.as<BFloat16>() + at, DType::bf16, count, head_dim, stride);
  };
  // The query heads of a group follow each other inside one task: the sums over them have one order.
  parallel_tasks(shape.batch * shape.kv_heads, [&](std::int64_t task, int thread) {
    const OneThread alone;
    const auto t = thread_space<HalvesBackward>(shape, tiles.tile(), scratchpad_bytes, workspace, thread, bytes);
    const std::int64_t b = task / shape.kv_heads, kv_head = task % shape.kv_heads, key = b * length * shape.key_stride + kv_head * head_dim;
    copy_rows(dense(t.k, DType::bf16, length, head_dim), rows(k, key, length, shape.key_stride), /*streamed=*/false);
    copy_rows(dense(t.v, DType::bf16, length, head_dim), rows(v, key, length, shape.key_stride), /*streamed=*/false);
    for (std::int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
      for (std::int64_t tile = 0; tile < tiles.tiles(); ++tile) {
        const std::int64_t queries = tiles.size(tile), first = tile * tiles.tile(), token = b * length + first;
        const std::int64_t query = token * shape.query_stride + h * head_dim, at_out = token * shape.out_stride + h * head_dim;
        copy_rows(dense(t.q, DType::bf16, queries, head_dim), rows(q, query, queries, shape.query_stride), /*streamed=*/false);
        copy_rows(dense(t.d_out, DType::bf16, queries, head_dim), rows(d_out, at_out, queries, shape.out_stride), /*streamed=*/false);
        HWY_DYNAMIC_DISPATCH(HalvesQueries)
        (shape, queries, out.as<BFloat16>() + at_out, lse.as<float>() + (b * shape.heads + h) * length + first, t);
        for (std::int64_t other = 0; other <= tile; ++other)
          backward_pair(shape, tiles, tile, other, h == kv_head * group && other == tile, t);
        HWY_DYNAMIC_DISPATCH(HalvesStore)
        (queries, head_dim, shape.scale, t.d_q, d_q.as<BFloat16>() + query, shape.query_stride);
      }
    HWY_DYNAMIC_DISPATCH(HalvesStore)(length, head_dim, shape.scale, t.d_k, d_k.as<BFloat16>() + key, shape.key_stride);
    HWY_DYNAMIC_DISPATCH(HalvesStore)(length, head_dim, 1.0f, t.d_v, d_v.as<BFloat16>() + key, shape.key_stride);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
