#include "ops/swiglu.h"

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/swiglu.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

HWY_INLINE FloatVec Sigmoid(FloatVec x) {
  const FloatVec one = hn::Set(FloatTag(), 1.0f);
  return hn::Div(one, hn::Add(one, Exp(hn::Neg(x))));
}

// Rows of gate_up [rows, 2F] to out [rows, F].
template <class T>
HWY_INLINE void SwigluForwardRows(std::int64_t rows, std::size_t width_f, T* out, const T* gate_up) {
  for (std::int64_t row = 0; row < rows; ++row, out += width_f, gate_up += 2 * width_f)
    ForVectors(width_f, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec gate = LoadVec(gate_up + i, width), up = LoadVec(gate_up + width_f + i, width);
      StoreVecOfHalves(hn::Mul(hn::Mul(gate, Sigmoid(gate)), up), out + i, width);
    });
}

// With σ = sigmoid(gate): d_up = d_out · gate · σ;  d_gate = d_out · up · σ · (1 + gate · (1 - σ)).
template <class T>
HWY_INLINE void SwigluBackwardRows(std::int64_t rows, std::size_t width_f, T* d_gate_up, const T* d_out, const T* gate_up) {
  const FloatVec one = hn::Set(FloatTag(), 1.0f);
  for (std::int64_t row = 0; row < rows; ++row, d_out += width_f, gate_up += 2 * width_f, d_gate_up += 2 * width_f)
    ForVectors(width_f, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec gate = LoadVec(gate_up + i, width), up = LoadVec(gate_up + width_f + i, width);
      const FloatVec d = LoadVec(d_out + i, width), sigmoid = Sigmoid(gate);
      const FloatVec slope = hn::Mul(sigmoid, Fma(gate, hn::Sub(one, sigmoid), one));
      StoreVecOfHalves(hn::Mul(hn::Mul(d, up), slope), d_gate_up + i, width);
      StoreVecOfHalves(hn::Mul(d, hn::Mul(gate, sigmoid)), d_gate_up + width_f + i, width);
    });
}

void SwigluForward(const Tensor& out, const Tensor& gate_up, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = out.size(1);
  ForStorage(out.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    SwigluForwardRows(end - begin, static_cast<std::size_t>(width), out.as<T>() + begin * width, gate_up.as<T>() + begin * 2 * width);
  });
}

void SwigluBackward(const Tensor& d_gate_up, const Tensor& d_out, const Tensor& gate_up, std::int64_t begin, std::int64_t end) {
  const std::int64_t width = d_out.size(1);
  ForStorage(d_out.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    SwigluBackwardRows(end - begin, static_cast<std::size_t>(width), d_gate_up.as<T>() + begin * 2 * width, d_out.as<T>() + begin * width,
                       gate_up.as<T>() + begin * 2 * width);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(SwigluForward);
HWY_EXPORT(SwigluBackward);

void swiglu_forward(const Tensor& out, const Tensor& gate_up) {
  require_compute_dtype("SwiGLU", {&out});
  require_dtype("SwiGLU", out.dtype(), {&gate_up});
  const std::int64_t rows = out.size(0), width = out.size(1);
  BALEEN_CHECK(gate_up.size(0) == rows && gate_up.size(1) == 2 * width, gate_up.size(0), gate_up.size(1), rows, width);
  parallel_ranges(rows, 1, worthwhile_rows(width),
                  [&](std::int64_t begin, std::int64_t end) { HWY_DYNAMIC_DISPATCH(SwigluForward)(out, gate_up, begin, end); });
}

void swiglu_backward(const Tensor& d_gate_up, const Tensor& d_out, const Tensor& gate_up) {
  require_compute_dtype("SwiGLU", {&d_out});
  require_dtype("SwiGLU", d_out.dtype(), {&d_gate_up, &gate_up});
  const std::int64_t rows = d_out.size(0), width = d_out.size(1);
  BALEEN_CHECK(gate_up.size(0) == rows && gate_up.size(1) == 2 * width, gate_up.size(0), gate_up.size(1), rows, width);
  BALEEN_CHECK(d_gate_up.elements() == gate_up.elements() && (rows * width == 0 || d_gate_up.data() != gate_up.data()));
  parallel_ranges(rows, 1, worthwhile_rows(width), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluBackward)(d_gate_up, d_out, gate_up, begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
