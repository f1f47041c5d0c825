#include "ops/bias.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/bias.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

void BiasAddRows(std::int64_t rows, std::size_t columns, std::size_t stride, float* y, const float* bias) {
  for (std::int64_t row = 0; row < rows; ++row, y += stride)
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(hn::Add(LoadVec(y + i, width), LoadVec(bias + i, width)), y + i, width); });
}

// d_bias of columns [0, count) += Σ over all rows; pointers stand at the first of the columns. Two levels of sums, 8 rows at a time, keep
// the rounding error near that of a pairwise sum; nothing in the order depends on the columns' split.
void BiasBackwardColumns(std::int64_t rows, std::size_t count, std::size_t stride, float* d_bias, const float* d_y) {
  const FloatTag d;
  constexpr std::size_t strip = 1024;
  constexpr std::int64_t block = 8;
  HWY_ALIGN float totals[strip + HWY_MAX_BYTES / sizeof(float)];
  for (std::size_t begin = 0; begin < count; begin += strip) {
    const std::size_t width_of_strip = HWY_MIN(strip, count - begin);
    ForVectors(width_of_strip, [&](std::size_t i, auto) HWY_ATTR { hn::Store(hn::Zero(d), d, totals + i); });
    for (std::int64_t first = 0; first < rows; first += block) {
      const std::int64_t last = HWY_MIN(first + block, rows);
      ForVectors(width_of_strip, [&](std::size_t i, auto width) HWY_ATTR {
        FloatVec sum = hn::Zero(d);
        for (std::int64_t row = first; row < last; ++row) sum = hn::Add(LoadVec(d_y + static_cast<std::size_t>(row) * stride + begin + i, width), sum);
        hn::Store(hn::Add(hn::Load(d, totals + i), sum), d, totals + i);
      });
    }
    ForVectors(width_of_strip, [&](std::size_t i, auto width) HWY_ATTR {
      StoreVec(hn::Add(LoadVec(d_bias + begin + i, width), hn::Load(d, totals + i)), d_bias + begin + i, width);
    });
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(BiasAddRows);
HWY_EXPORT(BiasBackwardColumns);

void bias_add(const Tensor& y, std::int64_t row_stride, const Tensor& bias) {
  require_fp32("a bias", {&y, &bias});
  const std::int64_t rows = y.size(0), columns = y.size(1);
  BALEEN_CHECK(bias.elements() == columns && row_stride >= columns, bias.elements(), columns, row_stride);
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(BiasAddRows)
    (end - begin, static_cast<std::size_t>(columns), static_cast<std::size_t>(row_stride), y.as<float>() + begin * row_stride, bias.as<float>());
  });
}

void bias_backward(const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride) {
  require_fp32("a bias", {&d_bias, &d_y});
  const std::int64_t rows = d_y.size(0), columns = d_y.size(1);
  BALEEN_CHECK(d_bias.elements() == columns && row_stride >= columns, d_bias.elements(), columns, row_stride);
  // A thread owns columns, whole cache lines of them, and walks all rows.
  parallel_ranges(columns, 16, worthwhile_rows(rows), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(BiasBackwardColumns)
    (rows, static_cast<std::size_t>(end - begin), static_cast<std::size_t>(row_stride), d_bias.as<float>() + begin, d_y.as<float>() + begin);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
