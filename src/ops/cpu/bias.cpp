#include "ops/bias.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/bias.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/column_sums-inl.h"
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

void BiasAddRows(std::int64_t rows, std::size_t columns, std::size_t stride, float* y, const float* bias) {
  for (std::int64_t row = 0; row < rows; ++row, y += stride)
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(hn::Add(LoadVec(y + i, width), LoadVec(bias + i, width)), y + i, width); });
}

// d_bias of columns [0, count) += Σ over all rows; pointers stand at the first of the columns, rows lie `stride` elements apart.
void BiasBackwardColumns(std::int64_t rows, std::size_t count, std::size_t stride, float* d_bias, const float* d_y) {
  AddColumnSums(rows, count, d_bias, [&](std::size_t row, std::size_t column, auto width, FloatVec sum) HWY_ATTR {
    return hn::Add(LoadVec(d_y + row * stride + column, width), sum);
  });
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
