// The maximum and the sum of exponentials of a row of logits, in one reading. Included once for each instruction set.
#if defined(BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_
#undef BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_
#else
#define BALEEN_OPS_CPU_SOFTMAX_ROW_INL_H_
#endif

#include <cmath>
#include <limits>

#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// The greatest of a row and Σ exp(logit - greatest), reading memory once: each block of the row is in the first-level cache for its second
// pass, and the sum so far is rescaled when a block raises the maximum. Block sums are fp32, their total fp64.
struct RowSoftmax {
  float greatest;
  double sum;
};

template <class T>
HWY_INLINE RowSoftmax ReduceRow(const T* logits, std::size_t count) {
  const FloatTag d;
  constexpr std::size_t block = 2048;
  RowSoftmax row{-std::numeric_limits<float>::infinity(), 0.0};
  for (std::size_t begin = 0; begin < count; begin += block) {
    const T* values = logits + begin;
    const std::size_t width_of_block = HWY_MIN(block, count - begin);
    const FloatVec first = hn::Set(d, ToFloat(values[0]));
    FloatVec greatest = first;
    ForVectors(width_of_block, [&](std::size_t i, auto width)
                                   HWY_ATTR { greatest = hn::Max(greatest, Covered(LoadVec(values + i, width), width, first)); });
    const float block_greatest = MaxLanes(greatest);
    if (block_greatest > row.greatest) {
      row.sum *= std::exp(static_cast<double>(row.greatest) - block_greatest);
      row.greatest = block_greatest;
    }
    FloatVec sum = hn::Zero(d);
    // Logits of -inf alone, so far, leave a sum that the first other block scales away.
    const FloatVec shift = hn::Set(d, std::isinf(row.greatest) && row.greatest < 0 ? 0.0f : row.greatest);
    ForVectors(width_of_block, [&](std::size_t i, auto width) HWY_ATTR {
      sum = hn::Add(sum, Covered(Exp(hn::Sub(LoadVec(values + i, width), shift)), width, hn::Zero(d)));
    });
    row.sum += SumLanes(sum);
  }
  return row;
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
