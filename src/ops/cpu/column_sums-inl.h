// Sums down the columns of a matrix, compiled once for each instruction set (hence the unusual include guard, as Highway asks).
#if defined(BALEEN_OPS_CPU_COLUMN_SUMS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_COLUMN_SUMS_INL_H
#undef BALEEN_OPS_CPU_COLUMN_SUMS_INL_H
#else
#define BALEEN_OPS_CPU_COLUMN_SUMS_INL_H
#endif

#include "ops/cpu/vector-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Elements [first, first + count) of `out`, fp32 or bf16, += totals [count]: one rounding each.
HWY_INLINE void AddTotals(const Tensor& out, std::size_t first, std::size_t count, const float* totals) {
  ForStorage(out.dtype(), [&](auto zero) HWY_ATTR {
    auto* const to = out.as<decltype(zero)>() + first;
    ForVectors(count, [&](std::size_t i, auto width)
                          HWY_ATTR { StoreVec(hn::Add(LoadVec(to + i, width), hn::Load(FloatTag(), totals + i)), to + i, width); });
  });
}

// Elements [first, first + count) of `out` += Σ over all rows, where add(row, column, width, sum) gives sum + the row's terms of the vector
// at `column`. Two levels of sums, 8 rows at a time, keep the rounding error near that of a pairwise sum; nothing in the order depends on
// how callers split the columns.
template <class Add>
HWY_INLINE void AddColumnSums(std::int64_t rows, std::size_t count, const Tensor& out, std::int64_t first, const Add& add) {
  const FloatTag d;
  constexpr std::size_t strip = 1024;
  constexpr std::int64_t block = 8;
  HWY_ALIGN float totals[strip + HWY_MAX_BYTES / sizeof(float)];
  for (std::size_t begin = 0; begin < count; begin += strip) {
    const std::size_t strip_width = HWY_MIN(strip, count - begin);
    ForVectors(strip_width, [&](std::size_t i, auto) HWY_ATTR { hn::Store(hn::Zero(d), d, totals + i); });
    for (std::int64_t block_begin = 0; block_begin < rows; block_begin += block) {
      const std::int64_t block_end = HWY_MIN(block_begin + block, rows);
      ForVectors(strip_width, [&](std::size_t i, auto width) HWY_ATTR {
        FloatVec sum = hn::Zero(d);
        for (std::int64_t row = block_begin; row < block_end; ++row) sum = add(static_cast<std::size_t>(row), begin + i, width, sum);
        hn::Store(hn::Add(hn::Load(d, totals + i), sum), d, totals + i);
      });
    }
    AddTotals(out, static_cast<std::size_t>(first) + begin, strip_width, totals);
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
