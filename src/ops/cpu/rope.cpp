#include "ops/rope.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rope.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// One token: x [heads, 2 · half]; cosines and sines [half] of its position. sign -1 rotates back.
void RotateToken(float* x, std::size_t heads, std::size_t half, const float* cosines, const float* sines, float sign) {
  const FloatVec signs = hn::Set(FloatTag(), sign);
  for (std::size_t head = 0; head < heads; ++head) {
    float* first = x + head * 2 * half;
    float* second = first + half;
    ForVectors(half, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec a = LoadVec(first + i, width), b = LoadVec(second + i, width);
      const FloatVec c = LoadVec(cosines + i, width), s = hn::Mul(LoadVec(sines + i, width), signs);
      StoreVec(hn::MulSub(a, c, hn::Mul(b, s)), first + i, width);
      StoreVec(hn::MulAdd(b, c, hn::Mul(a, s)), second + i, width);
    });
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(RotateToken);

void rope(const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions, bool inverse) {
  require_fp32("RoPE", {&x, &cosines, &sines});
  BALEEN_CHECK(x.dims() == 3 && x.size(2) % 2 == 0, x.dims(), x.size(2));
  const std::int64_t tokens = x.size(0), heads = x.size(1), half = x.size(2) / 2;
  BALEEN_CHECK(cosines.size(-1) == half && sines.size(-1) == half && cosines.size(0) == sines.size(0), cosines.size(-1), sines.size(-1), half);
  BALEEN_CHECK(positions.elements() == tokens && row_stride >= heads * half * 2, positions.elements(), tokens, row_stride);
  check_indices(positions, cosines.size(0));
  const std::int32_t* position = positions.as<std::int32_t>();
  parallel_ranges(tokens, 1, worthwhile_rows(heads * half * 2), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      HWY_DYNAMIC_DISPATCH(RotateToken)
      (x.as<float>() + token * row_stride, static_cast<std::size_t>(heads), static_cast<std::size_t>(half),
       cosines.as<float>() + position[token] * half, sines.as<float>() + position[token] * half, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
