#include "ops/gelu.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/gelu.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// ½ (1 + tanh(u)) is sigmoid(2u), which keeps its relative accuracy where tanh is near -1. With z = 2u = a·x + b·x³:
//   gelu = x · σ(z),  gelu' = σ + x · σ · (1 - σ) · (a + 3b·x²).
struct Gelu {
  FloatVec sigmoid, slope;  // σ(z), dz/dx
};

HWY_INLINE Gelu GeluParts(FloatVec x) {
  const FloatTag d;
  const FloatVec one = hn::Set(d, 1.0f), a = hn::Set(d, 1.5957691216057308f), b = hn::Set(d, 0.07135481627260025f);
  // Beyond ±11 σ has reached the end of Exp's range; without the bound x² could overflow to 0 · ∞. A NaN stays one, as in Exp.
  const FloatVec bounded = hn::Min(hn::Set(d, 11.0f), hn::Max(hn::Set(d, -11.0f), x));
  const FloatVec bx2 = hn::Mul(b, hn::Mul(bounded, bounded));
  const FloatVec z = hn::Mul(bounded, hn::Add(a, bx2));
  return {hn::Div(one, hn::Add(one, Exp(hn::Neg(z)))), Fma(hn::Set(d, 3.0f), bx2, a)};
}

template <class T>
HWY_INLINE void GeluForwardElements(std::size_t count, T* out, const T* x) {
  ForVectors(count, [&](std::size_t i, auto width) HWY_ATTR {
    const FloatVec value = LoadVec(x + i, width);
    StoreVecOfHalves(hn::Mul(value, GeluParts(value).sigmoid), out + i, width);
  });
}

template <class T>
HWY_INLINE void GeluBackwardElements(std::size_t count, T* d_x, const T* d_out, const T* x) {
  const FloatVec one = hn::Set(FloatTag(), 1.0f);
  ForVectors(count, [&](std::size_t i, auto width) HWY_ATTR {
    const FloatVec value = LoadVec(x + i, width);
    const Gelu gelu = GeluParts(value);
    const FloatVec rest = hn::Mul(hn::Mul(value, hn::Sub(one, gelu.sigmoid)), gelu.slope);
    StoreVecOfHalves(hn::Mul(LoadVec(d_out + i, width), Fma(gelu.sigmoid, rest, gelu.sigmoid)), d_x + i, width);
  });
}

void GeluForward(const Tensor& out, const Tensor& x, std::int64_t begin, std::int64_t end) {
  ForStorage(out.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    GeluForwardElements(static_cast<std::size_t>(end - begin), out.as<T>() + begin, x.as<T>() + begin);
  });
}

void GeluBackward(const Tensor& d_x, const Tensor& d_out, const Tensor& x, std::int64_t begin, std::int64_t end) {
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    GeluBackwardElements(static_cast<std::size_t>(end - begin), d_x.as<T>() + begin, d_out.as<T>() + begin, x.as<T>() + begin);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(GeluForward);
HWY_EXPORT(GeluBackward);

void gelu_forward(const Tensor& out, const Tensor& x) {
  require_compute_dtype("GELU", {&out});
  require_dtype("GELU", out.dtype(), {&x});
  const std::int64_t count = out.elements();
  BALEEN_CHECK(x.elements() == count, x.elements(), count);
  parallel_ranges(count, 1024, worthwhile_rows(1),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(GeluForward)(out, x, begin, end); });
}

void gelu_backward(const Tensor& d_x, const Tensor& d_out, const Tensor& x) {
  require_compute_dtype("GELU", {&x});
  require_dtype("GELU", x.dtype(), {&d_x, &d_out});
  const std::int64_t count = x.elements();
  BALEEN_CHECK(d_x.elements() == count && d_out.elements() == count, d_x.elements(), d_out.elements(), count);
  parallel_ranges(count, 1024, worthwhile_rows(1),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(GeluBackward)(d_x, d_out, x, begin, end); });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
