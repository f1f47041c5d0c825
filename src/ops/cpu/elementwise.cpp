#include "ops/elementwise.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/convert_rows.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

void AddRange(const Tensor& out, const Tensor& a, const Tensor& b, std::int64_t begin, std::int64_t end) {
  ForStorage(out.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    T* to = out.as<T>() + begin;
    const T *left = a.as<T>() + begin, *right = b.as<T>() + begin;
    ForVectors(static_cast<std::size_t>(end - begin), [&](std::size_t i, auto width) HWY_ATTR {
      StoreVec(hn::Add(LoadVec(left + i, width), LoadVec(right + i, width)), to + i, width);
    });
  });
}

// Columns [column_begin, column_end) of rows [begin, end).
void ConvertRows(const Matrix& to, const Matrix& from, std::int64_t begin, std::int64_t end, std::int64_t column_begin,
                 std::int64_t column_end) {
  ForStorage(to.dtype, [&](auto to_zero) HWY_ATTR {
    ForStorage(from.dtype, [&](auto from_zero) HWY_ATTR {
      for (std::int64_t row = begin; row < end; ++row) {
        auto* to_row = static_cast<decltype(to_zero)*>(to.data) + row * to.stride + column_begin;
        const auto* from_row = static_cast<decltype(from_zero)*>(from.data) + row * from.stride + column_begin;
        ForVectors(static_cast<std::size_t>(column_end - column_begin),
                   [&](std::size_t i, auto width) HWY_ATTR { StoreVec(LoadVec(from_row + i, width), to_row + i, width); });
      }
    });
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AddRange);
HWY_EXPORT(ConvertRows);

void add(const Tensor& out, const Tensor& a, const Tensor& b) {
  require_compute_dtype("addition", {&out});
  require_dtype("addition", out.dtype(), {&a, &b});
  const std::int64_t count = out.elements();
  BALEEN_CHECK(a.elements() == count && b.elements() == count, a.elements(), b.elements(), count);
  parallel_ranges(count, 1024, worthwhile_rows(1),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(AddRange)(out, a, b, begin, end); });
}

void convert(const Tensor& out, const Tensor& in) {
  require_compute_dtype("conversion", {&out, &in});
  const std::int64_t count = out.elements();
  BALEEN_CHECK(in.elements() == count, in.elements(), count);
  const Matrix to(out.data(), out.dtype(), 1, count, count), from(in.data(), in.dtype(), 1, count, count);
  parallel_ranges(count, 1024, worthwhile_rows(1),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(ConvertRows)(to, from, 0, 1, begin, end); });
}

void convert_rows(const Matrix& to, const Matrix& from) {
  BALEEN_CHECK(to.rows == from.rows && to.columns == from.columns, to.rows, from.rows, to.columns, from.columns);
  parallel_ranges(to.rows, 1, worthwhile_rows(to.columns),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(ConvertRows)(to, from, begin, end, 0, to.columns); });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
