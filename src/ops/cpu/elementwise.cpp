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

void AddElements(float* out, const float* a, const float* b, std::size_t count) {
  ForVectors(count, [&](std::size_t i, auto width) HWY_ATTR { StoreVec(hn::Add(LoadVec(a + i, width), LoadVec(b + i, width)), out + i, width); });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AddElements);

void add(const Tensor& out, const Tensor& a, const Tensor& b) {
  require_fp32("addition", {&out, &a, &b});
  const std::int64_t count = out.elements();
  BALEEN_CHECK(a.elements() == count && b.elements() == count, a.elements(), b.elements(), count);
  parallel_ranges(count, 1024, worthwhile_rows(1), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AddElements)
    (out.as<float>() + begin, a.as<float>() + begin, b.as<float>() + begin, static_cast<std::size_t>(end - begin));
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
