// Sums down the columns of a matrix, compiled once for each instruction set (hence the unusual include guard, as Highway asks).
#if defined(BALEEN_OPS_CPU_COLUMN_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_COLUMN_SUMS_INL_H
#undef BALEEN_OPS_CPU_COLUMN_SUMS_INL_H
#else
#define BALEEN_OPS_CPU_COLUMN_SUMS_INL_H
#endif

#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// out [count] += Σ over all rows, where add(row, column, width, sum) gives sum + the row's terms of the vector at `column`. Two levels of
// sums, 8 rows at a time, keep the rounding error near that of a pairwise sum; nothing in the order depends on how callers split the columns.
template <class Add>
HWY_INLINE void AddColumnSums(std::int64_t rows, std::size_t count, float* out, const Add& add) {
  const FloatTag d;
  constexpr std::size_t strip = 1024;
  constexpr std::int64_t block = 8;
  HWY_ALIGN float totals[strip + HWY_MAX_BYTES / sizeof(float)];
  for (std::size_t begin = 0; begin < count; begin += strip) {
    const std::size_t strip_width = HWY_MIN(strip, count - begin);
    ForVectors(strip_width, [&](std::size_t i, auto) HWY_ATTR { hn::Store(hn::Zero(d), d, totals + i); });
    for (std::int64_t first = 0; first < rows; first += block) {
      const std::int64_t last = HWY_MIN(first + block, rows);
      ForVectors(strip_width, [&](std::size_t i, auto width) HWY_ATTR {
        FloatVec sum = hn::Zero(d);
        for (std::int64_t row = first; row < last; ++row) sum = add(static_cast<std::size_t>(row), begin + i, width, sum);
        hn::Store(hn::Add(hn::Load(d, totals + i), sum), d, totals + i);
      });
    }
    ForVectors(strip_width, [&](std::size_t i, auto width) HWY_ATTR {
      StoreVec(hn::Add(LoadVec(out + begin + i, width), hn::Load(d, totals + i)), out + begin + i, width);
    });
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
