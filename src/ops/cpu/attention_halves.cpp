#include "ops/cpu/attention_halves.h"

#include <omp.h>

#include <limits>

#include "ops/cpu/copy_rows.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention_halves.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/attention_tiles-inl.h"

namespace baleen::ops::cpu {
#ifndef BALEEN_OPS_CPU_ATTENTION_HALVES_ONCE
#define BALEEN_OPS_CPU_ATTENTION_HALVES_ONCE

// A thread's memory. Tiles have rows of as many elements as they need, without gaps.
struct HalvesForward {
  BFloat16 *q, *k, *v;      // [tile, D]
  float* scores;            // [queries, keys]
  BFloat16* p;              // [queries, keys]: probabilities relative to the running maximum
  float* sums;              // [queries, D]: Σ probability · value
  float *greatest, *total;  // [queries]: the running maximum of scale · log2(e) · score, and Σ probability
  std::byte* scratchpad;

  HalvesForward(const AttentionShape& shape, std::int64_t tile, std::size_t scratchpad_bytes, Arena& arena) {
    for (BFloat16** whole : {&q, &k, &v}) *whole = take<BFloat16>(arena, "attention tiles", tile * shape.head_dim);
    scores = take<float>(arena, "attention tiles", tile * tile), p = take<BFloat16>(arena, "attention tiles", tile * tile);
    sums = take<float>(arena, "attention tiles", tile * shape.head_dim);
    greatest = take<float>(arena, "attention tiles", tile), total = take<float>(arena, "attention tiles", tile);
    scratchpad = reinterpret_cast<std::byte*>(take<std::uint8_t>(arena, "attention tiles", static_cast<std::int64_t>(scratchpad_bytes)));
  }
};

#endif
}  // namespace baleen::ops::cpu

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Scores of a tile become probabilities relative to the running maximum, which it may raise; the sums so far follow. On the diagonal query
// r sees keys up to r. factor: scale · log2(e). keys counts whole vectors.
void HalvesSoftmax(std::int64_t queries, std::int64_t keys, std::int64_t head_dim, bool diagonal, float factor, const HalvesForward& t) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const FloatVec nothing = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::int64_t r = 0; r < queries; ++r) {
    const float* const scores = t.scores + r * keys;
    BFloat16* const p = t.p + r * keys;
    const std::int64_t visible = diagonal ? r + 1 : keys, whole = visible / lanes * lanes;
    const auto seen = hn::FirstN(d, static_cast<std::size_t>(visible - whole));  // of the vector at `whole`, if any
    FloatVec greatest = nothing;
    for (std::int64_t i = 0; i < whole; i += lanes) greatest = hn::Max(greatest, hn::LoadU(d, scores + i));
    if (whole < visible) greatest = hn::Max(greatest, hn::IfThenElse(seen, hn::LoadU(d, scores + whole), nothing));
    const float reference = HWY_MAX(t.greatest[r], factor * MaxLanes(greatest));
    const FloatVec by = hn::Set(d, factor), shift = hn::Set(d, -reference);
    FloatVec total = hn::Zero(d);
    const auto keep = [&](std::int64_t i, FloatVec probability) HWY_ATTR {
      total = hn::Add(total, probability);
      StoreVecOfHalves(probability, p + i, Whole());
    };
    for (std::int64_t i = 0; i < whole; i += lanes) keep(i, Exp2(Fma(hn::LoadU(d, scores + i), by, shift)));
    if (whole < visible) keep(whole, hn::IfThenElseZero(seen, Exp2(Fma(hn::LoadU(d, scores + whole), by, shift))));
    std::fill(p + (visible + lanes - 1) / lanes * lanes, p + keys, BFloat16());
    const float raised = hn::GetLane(Exp2(hn::Set(d, t.greatest[r] - reference)));
    t.total[r] = t.total[r] * raised + SumLanes(total);
    t.greatest[r] = reference;
    if (raised == 1) continue;
    for (float* sums = t.sums + r * head_dim; sums < t.sums + (r + 1) * head_dim; sums += lanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, sums), hn::Set(d, raised)), d, sums);
  }
}

void HalvesFinish(const AttentionShape& shape, std::int64_t queries, const HalvesForward& t, BFloat16* out, float* lse) {
  FinishQueries(shape, queries, t.greatest, t.total, t.sums, out, lse);
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(HalvesSoftmax);
HWY_EXPORT(HalvesFinish);

bool multiplies_halves(const AttentionShape& shape, DType dtype, bool documents) {
  return dtype == DType::bf16 && !documents && processor_has(dnnl::cpu_isa::avx512_core_bf16) && shape.query_length == shape.key_length &&
         shape.query_offset == shape.key_offset &&
         (shape.key_batch_stride == 0 || shape.key_batch_stride == shape.key_length * shape.key_stride) && shape.query_length > 0 &&
         shape.query_length % 64 == 0 && shape.head_dim % 32 == 0 && shape.scale > 0;
}

// Smaller tiles have less of the half that the mask takes away, larger ones fewer calls; AMX multiplies a tile in no more time than a call.
HalvesTiles::HalvesTiles(const AttentionShape& shape)
    : length_(shape.query_length), tile_(std::min<std::int64_t>(length_, processor_has(dnnl::cpu_isa::avx512_core_amx) ? 256 : 128)) {}

namespace {

std::size_t forward_scratchpad(const AttentionShape& shape, const HalvesTiles& tiles) {
  const OneThread alone;
  std::size_t bytes = 0;
  tiles.for_sizes([&](std::int64_t queries, std::int64_t keys) {
    const Matrix q = dense(nullptr, DType::bf16, queries, shape.head_dim), k = dense(nullptr, DType::bf16, keys, shape.head_dim),
                 p = dense(nullptr, DType::bf16, queries, keys);
    bytes = std::max({bytes, scratchpad_of(dense(nullptr, DType::f32, queries, keys), q, k.transpose()),
                      scratchpad_of(dense(nullptr, DType::f32, queries, shape.head_dim), p, k)});
  });
  return bytes;
}

}  // namespace

std::size_t halves_forward_workspace(const AttentionShape& shape) {
  const HalvesTiles tiles(shape);
  return static_cast<std::size_t>(omp_get_max_threads()) *
         thread_bytes<HalvesForward>(shape, tiles.tile(), forward_scratchpad(shape, tiles));
}

void halves_forward(const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
                    void* workspace) {
  const HalvesTiles tiles(shape);
  const std::size_t scratchpad_bytes = forward_scratchpad(shape, tiles),
                    bytes = thread_bytes<HalvesForward>(shape, tiles.tile(), scratchpad_bytes);
  const std::int64_t heads = shape.batch * shape.heads, group = shape.heads / shape.kv_heads, head_dim = shape.head_dim;
  const float factor = shape.scale * 1.44269504088896340736f;
  // The last tiles of queries see the most keys: they go first, so that the threads end together.
  parallel_tasks(heads * tiles.tiles(), [&](std::int64_t task, int thread) {
    const OneThread alone;
    const auto t = thread_space<HalvesForward>(shape, tiles.tile(), scratchpad_bytes, workspace, thread, bytes);
    const std::int64_t tile = tiles.tiles() - 1 - task / heads, b = task / shape.heads % shape.batch, h = task % shape.heads;
    const std::int64_t queries = tiles.size(tile), first = tile * tiles.tile(), token = b * shape.query_length + first;
    const Matrix rows(q.as<BFloat16>() + token * shape.query_stride + h * head_dim, DType::bf16, queries, head_dim, shape.query_stride);
    const Matrix q_tile = dense(t.q, DType::bf16, queries, head_dim), sums = dense(t.sums, DType::f32, queries, head_dim);
    copy_rows(q_tile, rows, /*streamed=*/false);
    std::fill_n(t.greatest, queries, -std::numeric_limits<float>::infinity());
    std::fill_n(t.total, queries, 0.0f);
    std::fill_n(t.sums, queries * head_dim, 0.0f);
    for (std::int64_t other = 0; other <= tile; ++other) {
      const std::int64_t keys = tiles.size(other),
                         key = (b * shape.key_length + other * tiles.tile()) * shape.key_stride + h / group * head_dim;
      const Matrix k_tile = dense(t.k, DType::bf16, keys, head_dim), v_tile = dense(t.v, DType::bf16, keys, head_dim);
      copy_rows(k_tile, Matrix(k.as<BFloat16>() + key, DType::bf16, keys, head_dim, shape.key_stride), /*streamed=*/false);
      copy_rows(v_tile, Matrix(v.as<BFloat16>() + key, DType::bf16, keys, head_dim, shape.key_stride), /*streamed=*/false);
      multiply(dense(t.scores, DType::f32, queries, keys), q_tile, k_tile.transpose(), false, t.scratchpad);
      HWY_DYNAMIC_DISPATCH(HalvesSoftmax)(queries, keys, head_dim, other == tile, factor, t);
      multiply(sums, dense(t.p, DType::bf16, queries, keys), v_tile, other > 0, t.scratchpad);
    }
    HWY_DYNAMIC_DISPATCH(HalvesFinish)
    (shape, queries, t, out.as<BFloat16>() + token * shape.out_stride + h * head_dim,
     lse.as<float>() + (b * shape.heads + h) * shape.query_length + first);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
