// The backward pass: probabilities are recomputed from the log-sum-exp, tile by tile. With P the probabilities and ∂ gradients,
//   ∂v = Pᵀ ∂out;  ∂P = ∂out vᵀ;  ∂s = P ∘ (∂P - Σ ∂out ∘ out);  ∂q = scale · ∂s k;  ∂k = scale · ∂sᵀ q.
#include "ops/attention.h"
#include "ops/cpu/attention_halves.h"
#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#include "ops/threads.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/attention_tiles-inl.h"

namespace baleen::ops::cpu {
#ifndef BALEEN_OPS_CPU_ATTENTION_BACKWARD_ONCE
#define BALEEN_OPS_CPU_ATTENTION_BACKWARD_ONCE

// One sequence and one KV head. Pointers stand at its first token; those of the query heads at the first head of the group.
template <class T>
struct KeyHead {
  T *d_q, *d_k, *d_v;
  const T *d_out, *q, *k, *v, *out;
  const float* lse;  // [group, Tq]
  const std::int32_t* document_begin;
};

// All of the operation's arrays, and the elements where those of one sequence and one KV head begin.
struct BackwardArrays {
  const Tensor &d_q, &d_k, &d_v, &d_out, &q, &k, &v, &out, &lse;
};
struct BackwardOffsets {
  std::int64_t query = 0, key = 0, out = 0, lse = 0;
};

// A thread's part of the workspace, in floats: keys, values and their gradients [Tk, padded D], then tiles.
struct BackwardTiles {
  float *keys, *values, *d_keys, *d_values;
  float *queries_t, *d_out_t;          // [D, queries]; the queries times scale · log2(e)
  float *queries, *d_out, *d_queries;  // [queries, padded D]
  float *scores, *d_scores;            // [keys, queries]: the probabilities and the gradient of the scores
  float *lse, *delta;                  // [queries]: the log-sum-exp in units of log 2; Σ ∂out ∘ out

  static std::int64_t floats(const AttentionShape& shape) {
    const std::int64_t padded = padded_head_dim(shape.head_dim);
    return 4 * shape.key_length * padded + 5 * query_tile * padded + 2 * key_tile * query_tile + 2 * query_tile;
  }
  BackwardTiles(const AttentionShape& shape, float* next) {
    const std::int64_t padded = padded_head_dim(shape.head_dim);
    for (float** whole : {&keys, &values, &d_keys, &d_values}) *whole = next, next += shape.key_length * padded;
    for (float** tile : {&queries_t, &d_out_t, &queries, &d_out, &d_queries}) *tile = next, next += query_tile * padded;
    for (float** square : {&scores, &d_scores}) *square = next, next += key_tile * query_tile;
    for (float** row : {&lse, &delta}) *row = next, next += query_tile;
  }
};

#endif
}  // namespace baleen::ops::cpu

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Packs a tile of queries of head `h` in the group, and their ∂out, both ways round.
template <class T>
void PackQueries(const AttentionShape& shape, const KeyHead<T>& head, std::int64_t h, const QueryTile& queries,
                 const BackwardTiles& tiles) {
  const std::int64_t head_dim = shape.head_dim, padded = padded_head_dim(head_dim);
  constexpr float log2e = 1.44269504088896340736f;
  const T* q = head.q + queries.first * shape.query_stride + h * head_dim;
  const T* d_out = head.d_out + queries.first * shape.out_stride + h * head_dim;
  const T* out = head.out + queries.first * shape.out_stride + h * head_dim;
  PackRows(queries.count, head_dim, q, shape.query_stride, tiles.queries, padded);
  PackRows(queries.count, head_dim, d_out, shape.out_stride, tiles.d_out, padded);
  PackTransposed(queries.count, head_dim, shape.scale * log2e, q, shape.query_stride, tiles.queries_t);
  PackTransposed(queries.count, head_dim, 1.0f, d_out, shape.out_stride, tiles.d_out_t);
  std::fill_n(tiles.lse, query_tile, 0.0f);
  std::fill_n(tiles.delta, query_tile, 0.0f);
  QueryStatistics(queries.count, head_dim, d_out, shape.out_stride, out, shape.out_stride,
                  head.lse + h * shape.query_length + queries.first, tiles.delta, tiles.lse);
}

// Scores become probabilities, and d_scores, which holds ∂P, the gradient of the scores.
void SoftmaxGradientTile(const TileMask& mask, std::int64_t queries, std::int64_t keys, const BackwardTiles& tiles) {
  const FloatTag d;
  for (std::int64_t lane = 0; lane < queries; lane += static_cast<std::int64_t>(hn::Lanes(d))) {
    const std::int64_t open = mask.open(lane), closed = mask.closed(lane);
    const TileMask::Lanes visible = mask.lanes(lane);
    const FloatVec lse = hn::Load(d, tiles.lse + lane), delta = hn::Load(d, tiles.delta + lane);
    float *p_column = tiles.scores + lane, *g_column = tiles.d_scores + lane;
    for (std::int64_t at = 0; at < open * query_tile; at += query_tile) {
      const FloatVec p = Exp2(hn::Sub(hn::Load(d, p_column + at), lse));
      hn::Store(p, d, p_column + at);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, g_column + at), delta)), d, g_column + at);
    }
    for (std::int64_t key = open; key < closed; ++key) {
      const std::int64_t at = key * query_tile;
      const FloatVec p = hn::IfThenElseZero(visible.sees(key), Exp2(hn::Sub(hn::Load(d, p_column + at), lse)));
      hn::Store(p, d, p_column + at);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, g_column + at), delta)), d, g_column + at);
    }
    for (std::int64_t at = closed * query_tile; at < keys * query_tile; at += query_tile) {
      hn::Store(hn::Zero(d), d, p_column + at);
      hn::Store(hn::Zero(d), d, g_column + at);
    }
  }
}

// All a tile of queries adds to the gradients of keys and values, and its own gradient.
void BackwardQueryTile(const AttentionShape& shape, const QueryTile& queries, const BackwardTiles& tiles) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(FloatTag())), head_dim = shape.head_dim,
                     padded = padded_head_dim(head_dim);
  const std::int64_t width = (head_dim + lanes - 1) / lanes * lanes, query_lanes = (queries.count + lanes - 1) / lanes * lanes;
  std::fill_n(tiles.d_queries, queries.count * padded, 0.0f);
  for (std::int64_t first = queries.keys_begin; first < queries.keys_end; first += key_tile) {
    const std::int64_t keys = std::min(key_tile, queries.keys_end - first), at = first * padded;
    const TileMask mask(shape, queries, first, keys);
    TileProduct<false>(keys, query_lanes, head_dim, {tiles.keys + at, padded, 1}, tiles.queries_t, query_tile, tiles.scores, query_tile,
                       mask.scores());
    TileProduct<false>(keys, query_lanes, head_dim, {tiles.values + at, padded, 1}, tiles.d_out_t, query_tile, tiles.d_scores, query_tile,
                       mask.scores());
    SoftmaxGradientTile(mask, queries.count, keys, tiles);
    TileProduct<true>(keys, width, queries.count, {tiles.scores, query_tile, 1}, tiles.d_out, padded, tiles.d_values + at, padded,
                      mask.by_key());
    TileProduct<true>(keys, width, queries.count, {tiles.d_scores, query_tile, 1}, tiles.queries, padded, tiles.d_keys + at, padded,
                      mask.by_key());
    TileProduct<true>(queries.count, width, keys, {tiles.d_scores, 1, query_tile}, tiles.keys + at, padded, tiles.d_queries, padded,
                      mask.by_query());
  }
}

template <class T>
void BackwardHead(const AttentionShape& shape, const KeyHead<T>& head, float* workspace) {
  const BackwardTiles tiles(shape, workspace);
  const std::int64_t head_dim = shape.head_dim, padded = padded_head_dim(head_dim), group = shape.heads / shape.kv_heads;
  PackRows(shape.key_length, head_dim, head.k, shape.key_stride, tiles.keys, padded);
  PackRows(shape.key_length, head_dim, head.v, shape.key_stride, tiles.values, padded);
  std::fill_n(tiles.d_keys, shape.key_length * padded, 0.0f);
  std::fill_n(tiles.d_values, shape.key_length * padded, 0.0f);
  for (std::int64_t h = 0; h < group; ++h)
    for (std::int64_t first = 0; first < shape.query_length; first += query_tile) {
      const QueryTile queries = make_query_tile(shape, first, head.document_begin);
      PackQueries(shape, head, h, queries, tiles);
      BackwardQueryTile(shape, queries, tiles);
      UnpackScaled(queries.count, head_dim, shape.scale, tiles.d_queries, head.d_q + first * shape.query_stride + h * head_dim,
                   shape.query_stride);
    }
  UnpackScaled(shape.key_length, head_dim, shape.scale, tiles.d_keys, head.d_k, shape.key_stride);
  UnpackScaled(shape.key_length, head_dim, 1.0f, tiles.d_values, head.d_v, shape.key_stride);
}

void AttentionBackwardHead(const AttentionShape& shape, const BackwardArrays& all, const BackwardOffsets& at,
                           const std::int32_t* document_begin, float* workspace) {
  ForStorage(all.q.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    BackwardHead<T>(shape,
                    {all.d_q.as<T>() + at.query, all.d_k.as<T>() + at.key, all.d_v.as<T>() + at.key, all.d_out.as<T>() + at.out,
                     all.q.as<T>() + at.query, all.k.as<T>() + at.key, all.v.as<T>() + at.key, all.out.as<T>() + at.out,
                     all.lse.as<float>() + at.lse, document_begin},
                    workspace);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AttentionBackwardHead);

// The KV heads worked on at a time, one a thread; each needs its keys, values and their gradients, packed, and some tiles.
static std::int64_t heads_at_once(const AttentionShape& shape) {
  return std::min<std::int64_t>(threads(), shape.batch * shape.kv_heads);
}

std::size_t attention_backward_workspace(const AttentionShape& given, DType dtype, bool documents) {
  const AttentionShape shape = checked(given);
  if (multiplies_halves(shape, dtype, documents)) return halves_backward_workspace(shape);
  return static_cast<std::size_t>(heads_at_once(shape) * BackwardTiles::floats(shape)) * sizeof(float);
}

void attention_backward(const AttentionShape& given, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v, const Tensor& d_out,
                        const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        const Tensor& document_begin, void* workspace) {
  require_compute_dtype("attention", {&q});
  require_dtype("attention", q.dtype(), {&d_q, &d_k, &d_v, &d_out, &k, &v, &out});
  require_fp32("attention", {&lse});
  const AttentionShape shape = checked(given, document_begin);
  if (multiplies_halves(shape, q.dtype(), document_begin.defined()))
    return halves_backward(shape, d_q, d_k, d_v, d_out, q, k, v, out, lse, workspace);
  const std::int64_t group = shape.heads / shape.kv_heads, floats = BackwardTiles::floats(shape);
  const std::int32_t* documents = document_begin.defined() ? document_begin.as<std::int32_t>() : nullptr;
  const BackwardArrays arrays{d_q, d_k, d_v, d_out, q, k, v, out, lse};
  const bool one_each = heads_at_once(shape) == shape.batch * shape.kv_heads;  // any thread may then take any task
  // The query heads of a group follow each other inside one task: the sums over them have one order.
  parallel_tasks(shape.batch * shape.kv_heads, [&](std::int64_t task, std::int64_t thread) {
    const std::int64_t b = task / shape.kv_heads, kv_head = task % shape.kv_heads, first_head = kv_head * group;
    const BackwardOffsets at{.query = b * shape.query_length * shape.query_stride + first_head * shape.head_dim,
                             .key = b * shape.key_batch_stride + kv_head * shape.head_dim,
                             .out = b * shape.query_length * shape.out_stride + first_head * shape.head_dim,
                             .lse = (b * shape.heads + first_head) * shape.query_length};
    HWY_DYNAMIC_DISPATCH(AttentionBackwardHead)
    (shape, arrays, at, documents == nullptr ? nullptr : documents + b * shape.query_length,
     static_cast<float*>(workspace) + (one_each ? task : thread) * floats);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
