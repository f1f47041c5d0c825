#include "ops/head_norm.h"

#include <cmath>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/head_norm.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// One token: x [heads, D] in place; input [heads, D] or null.
template <class T>
HWY_INLINE void HeadNormForwardToken(std::size_t heads, std::size_t head_dim, T* x, T* input, float* rstd, const T* weight, float eps) {
  const FloatTag d;
  for (std::size_t head = 0; head < heads; ++head) {
    T* values = x + head * head_dim;
    FloatVec squares = hn::Zero(d);
    ForVectors(head_dim, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec value = LoadVec(values + i, width);
      squares = Fma(value, value, squares);
      if (input != nullptr) StoreVec(value, input + head * head_dim + i, width);
    });
    rstd[head] = 1.0f / std::sqrt(SumLanes(squares) / static_cast<float>(head_dim) + eps);
    const FloatVec scales = hn::Set(d, rstd[head]);
    ForVectors(head_dim, [&](std::size_t i, auto width) HWY_ATTR {
      StoreVec(hn::Mul(hn::Mul(LoadVec(values + i, width), scales), LoadVec(weight + i, width)), values + i, width);
    });
  }
}

// One token. With x̂ = x · rstd and g = weight · d_out, the gradient of a head is rstd · (g - x̂ · mean(g · x̂)).
template <class T>
HWY_INLINE void HeadNormBackwardToken(std::size_t heads, std::size_t head_dim, T* d_x, T* d_out, const T* input, const float* rstd,
                                      const T* weight) {
  const FloatTag d;
  for (std::size_t head = 0; head < heads; ++head, d_x += head_dim, d_out += head_dim, input += head_dim) {
    FloatVec products = hn::Zero(d);
    ForVectors(head_dim, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec gradient = LoadVec(d_x + i, width);
      StoreVec(gradient, d_out + i, width);
      products = Fma(hn::Mul(LoadVec(weight + i, width), gradient), LoadVec(input + i, width), products);
    });
    const float scale = rstd[head];
    const FloatVec scales = hn::Set(d, scale),
                   along_x = hn::Set(d, -scale * scale * scale * (SumLanes(products) / static_cast<float>(head_dim)));
    ForVectors(head_dim, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec through = hn::Mul(hn::Mul(LoadVec(weight + i, width), LoadVec(d_out + i, width)), scales);
      StoreVec(Fma(LoadVec(input + i, width), along_x, through), d_x + i, width);
    });
  }
}

// Tokens [begin, end).
void HeadNormForward(const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd, const Tensor& weight, float eps,
                     std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = x.size(1), head_dim = x.size(2), columns = heads * head_dim;
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    for (std::int64_t token = begin; token < end; ++token)
      HeadNormForwardToken<T>(static_cast<std::size_t>(heads), static_cast<std::size_t>(head_dim), x.as<T>() + token * row_stride,
                              elements_from<T>(input, token * columns), rstd.as<float>() + token * heads, weight.as<T>(), eps);
  });
}

void HeadNormBackwardInput(const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input, const Tensor& rstd,
                           const Tensor& weight, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = d_x.size(1), head_dim = d_x.size(2), columns = heads * head_dim;
  ForStorage(d_x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    for (std::int64_t token = begin; token < end; ++token)
      HeadNormBackwardToken<T>(static_cast<std::size_t>(heads), static_cast<std::size_t>(head_dim), d_x.as<T>() + token * row_stride,
                               d_out.as<T>() + token * columns, input.as<T>() + token * columns, rstd.as<float>() + token * heads,
                               weight.as<T>());
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(HeadNormForward);
HWY_EXPORT(HeadNormBackwardInput);

void head_norm_forward(const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd, const Tensor& weight, float eps) {
  require_compute_dtype("the norm of heads", {&x});
  require_dtype("the norm of heads", x.dtype(), {&input, &weight});
  require_fp32("the norm of heads", {&rstd});
  BALEEN_CHECK(x.dims() == 3, x.dims());
  const std::int64_t tokens = x.size(0), heads = x.size(1), head_dim = x.size(2), columns = heads * head_dim;
  BALEEN_CHECK(weight.elements() == head_dim && row_stride >= columns && rstd.elements() == tokens * heads, weight.elements(), row_stride,
               rstd.elements());
  BALEEN_CHECK(!input.defined() || input.elements() == x.elements(), input.elements(), x.elements());
  parallel_ranges(tokens, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(HeadNormForward)(x, row_stride, input, rstd, weight, eps, begin, end);
  });
}

void head_norm_backward_input(const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input, const Tensor& rstd,
                              const Tensor& weight) {
  require_compute_dtype("the norm of heads", {&d_x});
  require_dtype("the norm of heads", d_x.dtype(), {&d_out, &input, &weight});
  require_fp32("the norm of heads", {&rstd});
  BALEEN_CHECK(d_x.dims() == 3, d_x.dims());
  const std::int64_t tokens = d_x.size(0), heads = d_x.size(1), head_dim = d_x.size(2), columns = heads * head_dim;
  BALEEN_CHECK(weight.elements() == head_dim && row_stride >= columns && rstd.elements() == tokens * heads, weight.elements(), row_stride,
               rstd.elements());
  BALEEN_CHECK(d_out.elements() == d_x.elements() && input.elements() == d_x.elements(), d_out.elements(), input.elements(),
               d_x.elements());
  parallel_ranges(tokens, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(HeadNormBackwardInput)(d_x, row_stride, d_out, input, rstd, weight, begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
