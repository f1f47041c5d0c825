#include "ops/layer_norm.h"

#include <cmath>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/layer_norm.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/column_sums-inl.h"
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// One row of x [C]; delta and residual are both null or both there.
template <class T>
HWY_INLINE void LayerNormForwardRow(std::size_t columns, T* out, T* residual, float* mean, float* rstd, const T* x, const T* delta,
                                    const T* weight, const T* bias, float eps) {
  const FloatTag d;
  FloatVec sums = hn::Zero(d), squares = hn::Zero(d);
  ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
    FloatVec value = LoadVec(x + i, width);
    if (delta != nullptr) {
      value = AsStored<T>(hn::Add(value, LoadVec(delta + i, width)));
      StoreVec(value, residual + i, width);
    }
    sums = hn::Add(sums, value);
  });
  const T* normalised = delta != nullptr ? residual : x;
  *mean = SumLanes(sums) / static_cast<float>(columns);
  const FloatVec means = hn::Set(d, *mean);
  ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
    const FloatVec distance = Covered(hn::Sub(LoadVec(normalised + i, width), means), width, hn::Zero(d));
    squares = Fma(distance, distance, squares);
  });
  *rstd = 1.0f / std::sqrt(SumLanes(squares) / static_cast<float>(columns) + eps);
  const FloatVec scales = hn::Set(d, *rstd);
  ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
    const FloatVec unit = hn::Mul(hn::Sub(LoadVec(normalised + i, width), means), scales);
    StoreVec(Fma(unit, LoadVec(weight + i, width), LoadVec(bias + i, width)), out + i, width);
  });
}

void LayerNormForward(const Tensor& out, const Tensor& residual, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                      const Tensor& delta, const Tensor& weight, const Tensor& bias, float eps, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = weight.elements();
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    for (std::int64_t row = begin, at = begin * columns; row < end; ++row, at += columns)
      LayerNormForwardRow<T>(static_cast<std::size_t>(columns), out.as<T>() + at, delta.defined() ? residual.as<T>() + at : nullptr,
                             mean.as<float>() + row, rstd.as<float>() + row, x.as<T>() + at, elements_from<T>(delta, at), weight.as<T>(),
                             bias.as<T>(), eps);
  });
}

// With x̂ = (x - mean) · rstd and g = weight · d_out, the gradient of a row is rstd · (g - mean(g) - x̂ · mean(g · x̂)); it is added to
// d_residual, if there.
template <class T>
HWY_INLINE void LayerNormBackwardRows(std::int64_t rows, std::size_t columns, T* d_x, const T* d_out, const T* d_residual, const T* x,
                                      const float* mean, const float* rstd, const T* weight) {
  const FloatTag d;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * columns;
    const FloatVec means = hn::Set(d, mean[row]), scales = hn::Set(d, rstd[row]);
    FloatVec sums = hn::Zero(d), products = hn::Zero(d);
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec g = hn::Mul(LoadVec(weight + i, width), LoadVec(d_out + at + i, width));  // 0 in lanes past the end
      sums = hn::Add(sums, g);
      products = Fma(g, hn::Mul(hn::Sub(LoadVec(x + at + i, width), means), scales), products);
    });
    const FloatVec mean_g = hn::Set(d, SumLanes(sums) / static_cast<float>(columns));
    const FloatVec along_x = hn::Set(d, -SumLanes(products) / static_cast<float>(columns));
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec g = hn::Mul(LoadVec(weight + i, width), LoadVec(d_out + at + i, width));
      const FloatVec unit = hn::Mul(hn::Sub(LoadVec(x + at + i, width), means), scales);
      const FloatVec gradient = hn::Mul(Fma(unit, along_x, hn::Sub(g, mean_g)), scales);
      StoreVec(d_residual == nullptr ? gradient : hn::Add(gradient, LoadVec(d_residual + at + i, width)), d_x + at + i, width);
    });
  }
}

// d_weight and d_bias of columns [column, column + count) += Σ over all rows; pointers stand at the first of the columns. Two levels of
// sums, 8 rows at a time, keep the rounding error near that of a pairwise sum; nothing in the order depends on the columns' split.
template <class T>
HWY_INLINE void LayerNormBackwardWeightColumns(std::int64_t rows, std::size_t count, const Tensor& d_weight, const Tensor& d_bias,
                                               std::int64_t column, const T* d_out, const T* x, const float* mean, const float* rstd) {
  const FloatTag d;
  const auto stride = static_cast<std::size_t>(d_weight.elements());
  constexpr std::size_t strip = 512;
  constexpr std::int64_t block = 8;
  HWY_ALIGN float weights[strip + HWY_MAX_BYTES / sizeof(float)];
  HWY_ALIGN float biases[strip + HWY_MAX_BYTES / sizeof(float)];
  for (std::size_t begin = 0; begin < count; begin += strip) {
    const std::size_t width_of_strip = HWY_MIN(strip, count - begin);
    ForVectors(width_of_strip, [&](std::size_t i, auto) HWY_ATTR {
      hn::Store(hn::Zero(d), d, weights + i);
      hn::Store(hn::Zero(d), d, biases + i);
    });
    for (std::int64_t first = 0; first < rows; first += block) {
      const std::int64_t last = HWY_MIN(first + block, rows);
      ForVectors(width_of_strip, [&](std::size_t i, auto width) HWY_ATTR {
        FloatVec weight = hn::Zero(d), bias = hn::Zero(d);
        for (std::int64_t row = first; row < last; ++row) {
          const std::size_t at = static_cast<std::size_t>(row) * stride + begin + i;
          const FloatVec gradient = LoadVec(d_out + at, width);
          const FloatVec unit = hn::Mul(hn::Sub(LoadVec(x + at, width), hn::Set(d, mean[row])), hn::Set(d, rstd[row]));
          weight = Fma(gradient, unit, weight);
          bias = hn::Add(gradient, bias);
        }
        hn::Store(hn::Add(hn::Load(d, weights + i), weight), d, weights + i);
        hn::Store(hn::Add(hn::Load(d, biases + i), bias), d, biases + i);
      });
    }
    AddTotals(d_weight, static_cast<std::size_t>(column) + begin, width_of_strip, weights);
    AddTotals(d_bias, static_cast<std::size_t>(column) + begin, width_of_strip, biases);
  }
}

void LayerNormBackwardInput(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& mean,
                            const Tensor& rstd, const Tensor& weight, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = weight.elements(), at = begin * columns;
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    LayerNormBackwardRows<T>(end - begin, static_cast<std::size_t>(columns), d_x.as<T>() + at, d_out.as<T>() + at,
                             elements_from<T>(d_residual, at), x.as<T>() + at, mean.as<float>() + begin, rstd.as<float>() + begin,
                             weight.as<T>());
  });
}

// Columns [begin, end).
void LayerNormBackwardWeight(const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out, const Tensor& x, const Tensor& mean,
                             const Tensor& rstd, std::int64_t begin, std::int64_t end) {
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    LayerNormBackwardWeightColumns<T>(rstd.elements(), static_cast<std::size_t>(end - begin), d_weight, d_bias, begin,
                                      d_out.as<T>() + begin, x.as<T>() + begin, mean.as<float>(), rstd.as<float>());
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(LayerNormForward);
HWY_EXPORT(LayerNormBackwardInput);
HWY_EXPORT(LayerNormBackwardWeight);

void layer_norm_forward(const Tensor& out, const Tensor& residual, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                        const Tensor& delta, const Tensor& weight, const Tensor& bias, float eps) {
  require_compute_dtype("LayerNorm", {&x});
  require_dtype("LayerNorm", x.dtype(), {&out, &residual, &delta, &weight, &bias});
  require_fp32("LayerNorm", {&mean, &rstd});
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && out.elements() == x.elements(), x.elements(), out.elements(), rows, columns);
  BALEEN_CHECK(mean.elements() == rows && bias.elements() == columns, mean.elements(), rows, bias.elements(), columns);
  BALEEN_CHECK(!delta.defined() || (delta.elements() == x.elements() && residual.defined() && residual.elements() == x.elements()));
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormForward)(out, residual, mean, rstd, x, delta, weight, bias, eps, begin, end);
  });
}

void layer_norm_backward_input(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& mean,
                               const Tensor& rstd, const Tensor& weight) {
  require_compute_dtype("LayerNorm", {&x});
  require_dtype("LayerNorm", x.dtype(), {&d_x, &d_out, &d_residual, &weight});
  require_fp32("LayerNorm", {&mean, &rstd});
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements() && d_x.elements() == x.elements(), x.elements(), rows,
               columns);
  BALEEN_CHECK(mean.elements() == rows && (!d_residual.defined() || d_residual.elements() == x.elements()), mean.elements(), rows);
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormBackwardInput)(d_x, d_out, d_residual, x, mean, rstd, weight, begin, end);
  });
}

void layer_norm_backward_weight(const Tensor& d_weight, const Tensor& d_bias, const Tensor& d_out, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd) {
  require_compute_dtype("LayerNorm", {&x});
  require_dtype("LayerNorm", x.dtype(), {&d_out});
  require_gradient_dtype("LayerNorm", {&d_weight, &d_bias}, x.dtype());
  require_fp32("LayerNorm", {&mean, &rstd});
  const std::int64_t rows = rstd.elements(), columns = d_weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements(), x.elements(), d_out.elements(), rows, columns);
  BALEEN_CHECK(mean.elements() == rows && d_bias.elements() == columns, mean.elements(), rows, d_bias.elements(), columns);
  // A thread owns columns, whole cache lines of them, and walks all rows.
  parallel_ranges(columns, 16, worthwhile_rows(rows), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(LayerNormBackwardWeight)(d_weight, d_bias, d_out, x, mean, rstd, begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
