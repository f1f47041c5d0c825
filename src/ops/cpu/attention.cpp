// The forward pass: for each tile of queries, the tiles of keys it sees pass by once, with a running maximum and sum for each query.
#include "ops/attention.h"

#include <cmath>
#include <limits>

#include "ops/cpu/attention_halves.h"
#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// What a thread needs at a time, on its stack: up to 300 KB at D = 256, less than that of pages touched with smaller heads.
struct ForwardTiles {
  HWY_ALIGN float queries[most_head_dim * query_tile];  // [D, queries], times scale · log2(e)
  HWY_ALIGN float scores[key_tile * query_tile];        // [keys, queries], in units of log 2; then the probabilities
  HWY_ALIGN float keys[key_tile * most_head_dim];       // [keys, padded D], of bf16 keys; fp32 keys are read where they lie
  HWY_ALIGN float values[key_tile * most_head_dim];     // [keys, padded D]
  HWY_ALIGN float sums[query_tile * most_head_dim];     // [queries, padded D]: Σ probability · value
  HWY_ALIGN float greatest[query_tile];                 // the running maximum
  HWY_ALIGN float total[query_tile];                    // Σ probability
  HWY_ALIGN float factor[query_tile];                   // what a new maximum multiplies the sums so far with
};

// Scores become probabilities relative to the running maximum, which this tile may raise.
void SoftmaxTile(const TileMask& mask, std::int64_t queries, std::int64_t keys, ForwardTiles& tiles) {
  const FloatTag d;
  const FloatVec nothing = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t lane = 0; lane < queries; lane += static_cast<std::int64_t>(hn::Lanes(d))) {
    const std::int64_t open = mask.open(lane), closed = mask.closed(lane);
    const TileMask::Lanes visible = mask.lanes(lane);
    float* column = tiles.scores + lane;
    const FloatVec before = hn::Load(d, tiles.greatest + lane);
    FloatVec greatest = before;
    for (std::int64_t key = 0; key < open; ++key) greatest = hn::Max(greatest, hn::Load(d, column + key * query_tile));
    for (std::int64_t key = open; key < closed; ++key)
      greatest = hn::Max(greatest, hn::IfThenElse(visible.sees(key), hn::Load(d, column + key * query_tile), nothing));
    // A query that has seen nothing yet: any finite reference will do.
    const FloatVec reference = hn::IfThenElse(hn::Eq(greatest, nothing), hn::Zero(d), greatest);
    const FloatVec factor = Exp2(hn::Sub(before, reference));
    FloatVec total = hn::Zero(d);
    for (std::int64_t key = 0; key < open; ++key) {
      const FloatVec p = Exp2(hn::Sub(hn::Load(d, column + key * query_tile), reference));
      total = hn::Add(total, p);
      hn::Store(p, d, column + key * query_tile);
    }
    for (std::int64_t key = open; key < closed; ++key) {
      const FloatVec p = hn::IfThenElseZero(visible.sees(key), Exp2(hn::Sub(hn::Load(d, column + key * query_tile), reference)));
      total = hn::Add(total, p);
      hn::Store(p, d, column + key * query_tile);
    }
    for (std::int64_t key = closed; key < keys; ++key) hn::Store(hn::Zero(d), d, column + key * query_tile);
    hn::Store(greatest, d, tiles.greatest + lane);
    hn::Store(factor, d, tiles.factor + lane);
    hn::Store(Fma(hn::Load(d, tiles.total + lane), factor, total), d, tiles.total + lane);
  }
}

// A tile of keys as fp32, in place or packed.
HWY_INLINE TileOperand KeyRows(std::int64_t, std::int64_t, const float* from, std::int64_t stride, float*) {
  return {from, stride, 1};
}
HWY_INLINE TileOperand KeyRows(std::int64_t keys, std::int64_t head_dim, const BFloat16* from, std::int64_t stride, float* to) {
  const std::int64_t padded = padded_head_dim(head_dim);
  PackRows(keys, head_dim, from, stride, to, padded);
  return {to, padded, 1};
}

// One query tile of one head: q and out stand at its first query, k and v at key 0.
template <class T>
void ForwardTile(const AttentionShape& shape, const QueryTile& queries, T* out, float* lse, const T* q, const T* k, const T* v) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d)), head_dim = shape.head_dim, padded = padded_head_dim(head_dim);
  const std::int64_t width = (head_dim + lanes - 1) / lanes * lanes, query_lanes = (queries.count + lanes - 1) / lanes * lanes;
  ForwardTiles tiles;
  PackTransposed(queries.count, head_dim, shape.scale * 1.44269504088896340736f, q, shape.query_stride, tiles.queries);
  std::fill_n(tiles.sums, queries.count * padded, 0.0f);
  std::fill_n(tiles.total, query_tile, 0.0f);
  std::fill_n(tiles.greatest, query_tile, -std::numeric_limits<float>::infinity());
  for (std::int64_t first = queries.keys_begin; first < queries.keys_end; first += key_tile) {
    const std::int64_t keys = std::min(key_tile, queries.keys_end - first);
    const TileMask mask(shape, queries, first, keys);
    TileProduct<false>(keys, query_lanes, head_dim, KeyRows(keys, head_dim, k + first * shape.key_stride, shape.key_stride, tiles.keys),
                       tiles.queries, query_tile, tiles.scores, query_tile, mask.scores());
    SoftmaxTile(mask, queries.count, keys, tiles);
    for (std::int64_t r = 0; r < queries.count; ++r)
      if (const float factor = tiles.factor[r]; factor != 1)
        for (std::int64_t i = 0; i < width; i += lanes)
          hn::Store(hn::Mul(hn::Load(d, tiles.sums + r * padded + i), hn::Set(d, factor)), d, tiles.sums + r * padded + i);
    PackRows(keys, head_dim, v + first * shape.key_stride, shape.key_stride, tiles.values, padded);
    TileProduct<true>(queries.count, width, keys, {tiles.scores, 1, query_tile}, tiles.values, padded, tiles.sums, padded, mask.by_query());
  }
  FinishQueries(shape, queries.count, tiles.greatest, tiles.total, tiles.sums, out, lse);
}

// `at`: the elements where this tile's queries, outputs and log-sum-exps and the sequence's keys begin.
void AttentionForwardTile(const AttentionShape& shape, const QueryTile& queries, const ForwardOffsets& at, const Tensor& out,
                          const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v) {
  ForStorage(out.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    ForwardTile<T>(shape, queries, out.as<T>() + at.out, lse.as<float>() + at.lse, q.as<T>() + at.query, k.as<T>() + at.key,
                   v.as<T>() + at.key);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AttentionForwardTile);

AttentionShape checked(AttentionShape shape) {
  BALEEN_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, shape.heads, shape.kv_heads);
  BALEEN_CHECK(shape.head_dim > 0 && shape.query_stride >= shape.head_dim && shape.key_stride >= shape.head_dim &&
                   shape.out_stride >= shape.head_dim,
               shape.head_dim, shape.query_stride, shape.key_stride, shape.out_stride);
  if (shape.head_dim > most_head_dim)
    throw Error(ExitCode::bad_config, "attention heads of width " + std::to_string(shape.head_dim) + " are too wide for the CPU",
                "model.head_dim", "use heads of at most " + std::to_string(most_head_dim));
  if (shape.key_batch_stride == 0) shape.key_batch_stride = shape.key_length * shape.key_stride;
  return shape;
}

AttentionShape checked(const AttentionShape& shape, const Tensor& document_begin) {
  BALEEN_CHECK(!document_begin.defined() || document_begin.elements() == shape.batch * shape.query_length, document_begin.elements());
  return checked(shape);
}

std::size_t attention_forward_workspace(const AttentionShape& given, DType dtype, bool documents) {
  const AttentionShape shape = checked(given);
  return multiplies_halves(shape, dtype, documents) ? halves_forward_workspace(shape) : 0;
}

void attention_forward(const AttentionShape& given, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& document_begin, void* workspace) {
  require_compute_dtype("attention", {&out});
  require_dtype("attention", out.dtype(), {&q, &k, &v});
  require_fp32("attention", {&lse});
  const AttentionShape shape = checked(given, document_begin);
  if (multiplies_halves(shape, out.dtype(), document_begin.defined())) return halves_forward(shape, out, lse, q, k, v, workspace);
  const std::int64_t tiles = (shape.query_length + query_tile - 1) / query_tile, group = shape.heads / shape.kv_heads;
  const std::int32_t* documents = document_begin.defined() ? document_begin.as<std::int32_t>() : nullptr;
  // The last tiles of queries see the most keys: they go first, so that the threads end together.
  parallel_tasks(shape.batch * shape.heads * tiles, [&](std::int64_t task, std::int64_t) {
    const std::int64_t tile = tiles - 1 - task / (shape.batch * shape.heads), b = task / shape.heads % shape.batch, h = task % shape.heads;
    const QueryTile queries =
        make_query_tile(shape, tile * query_tile, documents == nullptr ? nullptr : documents + b * shape.query_length);
    const std::int64_t token = b * shape.query_length + queries.first;
    const ForwardOffsets at{.out = token * shape.out_stride + h * shape.head_dim,
                            .lse = (b * shape.heads + h) * shape.query_length + queries.first,
                            .query = token * shape.query_stride + h * shape.head_dim,
                            .key = b * shape.key_batch_stride + h / group * shape.head_dim};
    HWY_DYNAMIC_DISPATCH(AttentionForwardTile)(shape, queries, at, out, lse, q, k, v);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
