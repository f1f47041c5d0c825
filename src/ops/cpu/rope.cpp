#include "ops/rope.h"

#include "ops/bias.h"
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
template <class T>
HWY_INLINE void RotateToken(T* x, std::size_t heads, std::size_t half, const float* cosines, const float* sines, float sign) {
  const FloatVec signs = hn::Set(FloatTag(), sign);
  for (std::size_t head = 0; head < heads; ++head) {
    T* first = x + head * 2 * half;
    T* second = first + half;
    ForVectors(half, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec a = LoadVec(first + i, width), b = LoadVec(second + i, width);
      const FloatVec c = LoadVec(cosines + i, width), s = hn::Mul(LoadVec(sines + i, width), signs);
      StoreVec(hn::MulSub(a, c, hn::Mul(b, s)), first + i, width);
      StoreVec(hn::MulAdd(b, c, hn::Mul(a, s)), second + i, width);
    });
  }
}

void RotateTokens(const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const std::int32_t* positions,
                  bool inverse, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = cosines.size(-1);
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    for (std::int64_t token = begin; token < end; ++token)
      RotateToken(x.as<T>() + token * row_stride, static_cast<std::size_t>(x.size(1)), static_cast<std::size_t>(half),
                  cosines.as<float>() + positions[token] * half, sines.as<float>() + positions[token] * half, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(RotateTokens);

void rope(const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions, bool inverse) {
  require_compute_dtype("RoPE", {&x});
  require_fp32("RoPE", {&cosines, &sines});
  BALEEN_CHECK(x.dims() == 3 && x.size(2) % 2 == 0, x.dims(), x.size(2));
  const std::int64_t tokens = x.size(0), heads = x.size(1), half = x.size(2) / 2;
  BALEEN_CHECK(cosines.size(-1) == half && sines.size(-1) == half && cosines.size(0) == sines.size(0), cosines.size(-1), sines.size(-1),
               half);
  BALEEN_CHECK(positions.elements() == tokens && row_stride >= heads * half * 2, positions.elements(), tokens, row_stride);
  check_indices(positions, cosines.size(0));
  parallel_ranges(tokens, 1, worthwhile_rows(heads * half * 2), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(RotateTokens)(x, row_stride, cosines, sines, positions.as<std::int32_t>(), inverse, begin, end);
  });
}

void rope_backward_with_bias(const Tensor& d_y, std::int64_t rotated, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                             const Tensor& d_bias) {
  const std::int64_t rows = d_y.size(0), columns = d_y.size(1), width = 2 * cosines.size(-1);
  BALEEN_CHECK(columns % width == 0 && rotated * width <= columns, columns, width, rotated);
  rope(Tensor(d_y.data(), d_y.dtype(), {rows, rotated, width}), columns, cosines, sines, positions, /*inverse=*/true);
  bias_backward(d_bias, d_y, columns);
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
