#include "ops/elementwise.h"

#include "ops/cpu/checks.h"
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

void ConvertRange(const Tensor& out, const Tensor& in, std::int64_t begin, std::int64_t end) {
  ForStorage(out.dtype(), [&](auto out_zero) HWY_ATTR {
    ForStorage(in.dtype(), [&](auto in_zero) HWY_ATTR {
      auto* to = out.as<decltype(out_zero)>() + begin;
      const auto* from = in.as<decltype(in_zero)>() + begin;
      ForVectors(static_cast<std::size_t>(end - begin),
                 [&](std::size_t i, auto width) HWY_ATTR { StoreVec(LoadVec(from + i, width), to + i, width); });
    });
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AddRange);
HWY_EXPORT(ConvertRange);

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
  BALEEN_CHECK(in.elements() == out.elements(), in.elements(), out.elements());
  parallel_ranges(out.elements(), 1024, worthwhile_rows(1),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(ConvertRange)(out, in, begin, end); });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
