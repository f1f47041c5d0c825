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

// Rows [begin, end).
void BiasAdd(const Tensor& y, std::int64_t row_stride, const Tensor& bias, std::int64_t begin, std::int64_t end) {
  ForStorage(y.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T* values = bias.as<T>();
    for (std::int64_t at = begin; at < end; ++at) {
      T* row = y.as<T>() + at * row_stride;
      ForVectors(static_cast<std::size_t>(bias.elements()), [&](std::size_t i, auto width) HWY_ATTR {
        StoreVec(hn::Add(LoadVec(row + i, width), LoadVec(values + i, width)), row + i, width);
      });
    }
  });
}

// Columns [begin, end) += Σ over all rows.
void BiasBackward(const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride, std::int64_t begin, std::int64_t end) {
  ForStorage(d_y.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    const T* first = d_y.as<T>() + begin;
    const auto add = [&](std::size_t row, std::size_t column, auto width, FloatVec sum)
                         HWY_ATTR { return hn::Add(LoadVec(first + row * static_cast<std::size_t>(row_stride) + column, width), sum); };
    AddColumnSums(d_y.size(0), static_cast<std::size_t>(end - begin), d_bias, begin, add);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(BiasAdd);
HWY_EXPORT(BiasBackward);

void bias_add(const Tensor& y, std::int64_t row_stride, const Tensor& bias) {
  require_compute_dtype("a bias", {&y});
  require_dtype("a bias", y.dtype(), {&bias});
  const std::int64_t rows = y.size(0), columns = y.size(1);
  BALEEN_CHECK(bias.elements() == columns && row_stride >= columns, bias.elements(), columns, row_stride);
  parallel_ranges(rows, 1, worthwhile_rows(columns),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(BiasAdd)(y, row_stride, bias, begin, end); });
}

void bias_backward(const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride) {
  require_compute_dtype("a bias", {&d_y});
  require_gradient_dtype("a bias", {&d_bias}, d_y.dtype());
  const std::int64_t rows = d_y.size(0), columns = d_y.size(1);
  BALEEN_CHECK(d_bias.elements() == columns && row_stride >= columns, d_bias.elements(), columns, row_stride);
  // A thread owns columns, whole cache lines of them, and walks all rows.
  parallel_ranges(columns, 16, worthwhile_rows(rows),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(BiasBackward)(d_bias, d_y, row_stride, begin, end); });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
