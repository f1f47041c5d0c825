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
void HeadNormForwardToken(std::size_t heads, std::size_t head_dim, float* x, float* input, float* rstd, const float* weight, float eps) {
  const FloatTag d;
  for (std::size_t head = 0; head < heads; ++head) {
    float* values = x + head * head_dim;
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
void HeadNormBackwardToken(std::size_t heads, std::size_t head_dim, float* d_x, float* d_out, const float* input, const float* rstd,
                           const float* weight) {
  const FloatTag d;
  for (std::size_t head = 0; head < heads; ++head, d_x += head_dim, d_out += head_dim, input += head_dim) {
    FloatVec products = hn::Zero(d);
    ForVectors(head_dim, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec gradient = LoadVec(d_x + i, width);
      StoreVec(gradient, d_out + i, width);
      products = Fma(hn::Mul(LoadVec(weight + i, width), gradient), LoadVec(input + i, width), products);
    });
    const float scale = rstd[head];
    const FloatVec scales = hn::Set(d, scale), along_x = hn::Set(d, -scale * scale * scale * (SumLanes(products) / static_cast<float>(head_dim)));
    ForVectors(head_dim, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec through = hn::Mul(hn::Mul(LoadVec(weight + i, width), LoadVec(d_out + i, width)), scales);
      StoreVec(Fma(LoadVec(input + i, width), along_x, through), d_x + i, width);
    });
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(HeadNormForwardToken);
HWY_EXPORT(HeadNormBackwardToken);

void head_norm_forward(const Tensor& x, std::int64_t row_stride, const Tensor& input, const Tensor& rstd, const Tensor& weight, float eps) {
  require_fp32("the norm of heads", {&x, &input, &rstd, &weight});
  BALEEN_CHECK(x.dims() == 3, x.dims());
  const std::int64_t tokens = x.size(0), heads = x.size(1), head_dim = x.size(2), columns = heads * head_dim;
  BALEEN_CHECK(weight.elements() == head_dim && row_stride >= columns && rstd.elements() == tokens * heads, weight.elements(), row_stride, rstd.elements());
  BALEEN_CHECK(!input.defined() || input.elements() == x.elements(), input.elements(), x.elements());
  parallel_ranges(tokens, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      HWY_DYNAMIC_DISPATCH(HeadNormForwardToken)
      (static_cast<std::size_t>(heads), static_cast<std::size_t>(head_dim), x.as<float>() + token * row_stride,
       input.defined() ? input.as<float>() + token * columns : nullptr, rstd.as<float>() + token * heads, weight.as<float>(), eps);
  });
}

void head_norm_backward_input(const Tensor& d_x, std::int64_t row_stride, const Tensor& d_out, const Tensor& input, const Tensor& rstd,
                              const Tensor& weight) {
  require_fp32("the norm of heads", {&d_x, &d_out, &input, &rstd, &weight});
  BALEEN_CHECK(d_x.dims() == 3, d_x.dims());
  const std::int64_t tokens = d_x.size(0), heads = d_x.size(1), head_dim = d_x.size(2), columns = heads * head_dim;
  BALEEN_CHECK(weight.elements() == head_dim && row_stride >= columns && rstd.elements() == tokens * heads, weight.elements(), row_stride, rstd.elements());
  BALEEN_CHECK(d_out.elements() == d_x.elements() && input.elements() == d_x.elements(), d_out.elements(), input.elements(), d_x.elements());
  parallel_ranges(tokens, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token)
      HWY_DYNAMIC_DISPATCH(HeadNormBackwardToken)
      (static_cast<std::size_t>(heads), static_cast<std::size_t>(head_dim), d_x.as<float>() + token * row_stride,
       d_out.as<float>() + token * columns, input.as<float>() + token * columns, rstd.as<float>() + token * heads, weight.as<float>());
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
