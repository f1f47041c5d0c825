#include "ops/adamw.h"

#include <array>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/adamw.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// scalars as adamw.h describes them: learning rate, the two bias corrections, the factor on the gradients.
void AdamWElements(float* weights, const float* gradients, float* exp_avg, float* exp_avg_sq, std::size_t count, const float* scalars,
                   const AdamWConstants& constants) {
  const FloatTag d;
  const FloatVec factor = hn::Set(d, scalars[adamw_gradient_factor]);
  const FloatVec beta1 = hn::Set(d, constants.beta1), beta2 = hn::Set(d, constants.beta2);
  const FloatVec one_minus_beta1 = hn::Set(d, 1.0f - constants.beta1), one_minus_beta2 = hn::Set(d, 1.0f - constants.beta2);
  const FloatVec inverse_correction1 = hn::Set(d, 1.0f / scalars[adamw_correction1]);
  const FloatVec inverse_correction2 = hn::Set(d, 1.0f / scalars[adamw_correction2]);
  const FloatVec rate = hn::Set(d, scalars[adamw_learning_rate]), decay = hn::Set(d, constants.weight_decay), eps = hn::Set(d, constants.eps);
  ForVectors(count, [&](std::size_t i, auto width) HWY_ATTR {
    const FloatVec g = hn::Mul(factor, LoadVec(gradients + i, width));
    const FloatVec m = Fma(beta1, LoadVec(exp_avg + i, width), hn::Mul(one_minus_beta1, g));
    const FloatVec v = Fma(beta2, LoadVec(exp_avg_sq + i, width), hn::Mul(one_minus_beta2, hn::Mul(g, g)));
    const FloatVec w = LoadVec(weights + i, width);
    const FloatVec update = hn::Div(hn::Mul(m, inverse_correction1), hn::Add(hn::Sqrt(hn::Mul(v, inverse_correction2)), eps));
    StoreVec(m, exp_avg + i, width);
    StoreVec(v, exp_avg_sq + i, width);
    StoreVec(hn::NegMulAdd(rate, Fma(decay, w, update), w), weights + i, width);
  });
}

// Σ values² in fp64.
double SumOfSquares(const float* values, std::size_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(df, values + i)), b = hn::PromoteTo(d, hn::LoadU(df, values + i + lanes));
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(AdamWElements);
HWY_EXPORT(SumOfSquares);

void adamw(const Tensor& weights, const Tensor& gradients, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& step_scalars,
           const AdamWConstants& constants) {
  require_fp32("AdamW", {&weights, &gradients, &exp_avg, &exp_avg_sq, &step_scalars});
  const std::int64_t count = weights.elements();
  BALEEN_CHECK(gradients.elements() == count && exp_avg.elements() == count && exp_avg_sq.elements() == count, count, gradients.elements());
  BALEEN_CHECK(step_scalars.elements() == 4, step_scalars.elements());
  parallel_ranges(count, 1024, worthwhile_rows(1), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdamWElements)
    (weights.as<float>() + begin, gradients.as<float>() + begin, exp_avg.as<float>() + begin, exp_avg_sq.as<float>() + begin,
     static_cast<std::size_t>(end - begin), step_scalars.as<float>(), constants);
  });
}

void sum_of_squares(const Tensor& sum, const Tensor& values) {
  require_fp32("sum of squares", {&values});
  BALEEN_CHECK(sum.elements() == 1, sum.elements());
  const std::int64_t count = values.elements();
  // At most 256 blocks of whole kibi-elements: their bounds, and so the order of all additions, follow from the count alone.
  constexpr std::int64_t most_blocks = 256, unit = 1024;
  const std::int64_t block = (count + most_blocks * unit - 1) / (most_blocks * unit) * unit;
  const std::int64_t blocks = count == 0 ? 0 : (count + block - 1) / block;
  std::array<double, most_blocks> partial;
  parallel_ranges(blocks, 1, 8192 / unit, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      partial[static_cast<std::size_t>(i)] = HWY_DYNAMIC_DISPATCH(SumOfSquares)(
          values.as<float>() + i * block, static_cast<std::size_t>(std::min(block, count - i * block)));
  });
  double total = 0;
  for (std::int64_t i = 0; i < blocks; ++i) total += partial[static_cast<std::size_t>(i)];
  sum.as<double>()[0] += total;
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
