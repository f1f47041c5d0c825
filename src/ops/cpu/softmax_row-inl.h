// The maximum and the sum of exponentials of a row of logits, in one reading, and its softmax. Included once for each instruction set.
#if defined(BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_
#undef BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_
#else
#define BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cmath>
#include <limits>

#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

struct RowSoftmax {
  float greatest;
  double sum;
};
constexpr std::size_t softmax_block = 2048;

// Four chains of maxima: one would wait for itself.
template <class T>
HWY_INLINE float GreatestOf(const T* values, std::size_t count) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  const FloatVec first = hn::Set(d, ToFloat(values[0]));
  FloatVec a = first, b = first, c = first, e = first;
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Max(a, LoadVec(values + i, Whole()));
    b = hn::Max(b, LoadVec(values + i + lanes, Whole()));
    c = hn::Max(c, LoadVec(values + i + 2 * lanes, Whole()));
    e = hn::Max(e, LoadVec(values + i + 3 * lanes, Whole()));
  }
  ForVectors(count - i, [&](std::size_t j, auto width) HWY_ATTR { a = hn::Max(a, Covered(LoadVec(values + i + j, width), width, first)); });
  return MaxLanes(hn::Max(hn::Max(a, b), hn::Max(c, e)));
}

// The greatest of a row and Σ exp(logit - greatest), reading memory once: each block of the row is in the first-level cache for its second
// pass, and the sum so far is rescaled when a block raises the maximum. Block sums are fp32, their total fp64.
//
// kKeep: `exponentials` [count], which may be the logits themselves, becomes exp(logit - references[its block]), and references
// [⌈count / softmax_block⌉] the greatest up to and with each block.
template <bool kKeep, class T>
HWY_INLINE RowSoftmax ReduceRow(const T* logits, std::size_t count, float* exponentials = nullptr, float* references = nullptr) {
  const FloatTag d;
  RowSoftmax row{-std::numeric_limits<float>::infinity(), 0.0};
  for (std::size_t begin = 0; begin < count; begin += softmax_block) {
    const T* values = logits + begin;
    const std::size_t width_of_block = HWY_MIN(softmax_block, count - begin);
    const float block_greatest = GreatestOf(values, width_of_block);
    if (block_greatest > row.greatest) {
      row.sum *= std::exp(static_cast<double>(row.greatest) - block_greatest);
      row.greatest = block_greatest;
    }
    if constexpr (kKeep) references[begin / softmax_block] = row.greatest;
    FloatVec sum = hn::Zero(d);
    // Logits of -inf alone, so far, leave a sum that the first other block scales away.
    const FloatVec shift = hn::Set(d, std::isinf(row.greatest) && row.greatest < 0 ? 0.0f : row.greatest);
    ForVectors(width_of_block, [&](std::size_t i, auto width) HWY_ATTR {
      constexpr std::size_t line = 64 / sizeof(T);  // the next block comes while this one is computed with
      if (i % line == 0 && begin + softmax_block + i < count) hwy::Prefetch(values + softmax_block + i);
      const FloatVec exponential = Exp(hn::Sub(LoadVec(values + i, width), shift));
      sum = hn::Add(sum, Covered(exponential, width, hn::Zero(d)));
      if constexpr (kKeep) StoreVec(exponential, exponentials + begin + i, width);
    });
    row.sum += SumLanes(sum);
  }
  return row;
}

// to [count] = scale · softmax of a row of which ReduceRow<true> made `row`, the exponentials (which may be `to`) and the references.
template <class T>
HWY_INLINE void SoftmaxOfRow(const RowSoftmax& row, double scale, const float* exponentials, const float* references, std::size_t count,
                             T* to) {
  const FloatTag d;
  for (std::size_t begin = 0; begin < count; begin += softmax_block) {
    const double of_block = std::exp(static_cast<double>(references[begin / softmax_block]) - row.greatest);
    const FloatVec factor = hn::Set(d, static_cast<float>(scale / row.sum * of_block));
    ForVectors(HWY_MIN(softmax_block, count - begin), [&](std::size_t i, auto width) HWY_ATTR {
      StoreVecOfHalves(hn::Mul(factor, LoadVec(exponentials + begin + i, width)), to + begin + i, width);
    });
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
