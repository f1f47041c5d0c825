#include "ops/norm.h"

#include <cmath>

#include "ops/cpu/checks.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include "ops/cpu/column_sums-inl.h"
#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// Rows of x [rows, C]; delta and residual are both null or both there.
template <class T>
HWY_INLINE void NormForwardRows(std::int64_t rows, std::size_t columns, T* out, T* residual, float* rstd, const T* x, const T* delta,
                                const T* weight, float eps) {
  const FloatTag d;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * columns;
    FloatVec squares = hn::Zero(d);
    const T* normalised = x + at;
    if (delta != nullptr) {
      ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
        const FloatVec sum = AsStored<T>(hn::Add(LoadVec(x + at + i, width), LoadVec(delta + at + i, width)));
        StoreVec(sum, residual + at + i, width);
        squares = Fma(sum, sum, squares);
      });
      normalised = residual + at;
    } else {
      ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
        const FloatVec value = LoadVec(normalised + i, width);
        squares = Fma(value, value, squares);
      });
    }
    const float scale = 1.0f / std::sqrt(SumLanes(squares) / static_cast<float>(columns) + eps);
    rstd[row] = scale;
    const FloatVec scales = hn::Set(d, scale);
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
      StoreVec(hn::Mul(hn::Mul(LoadVec(normalised + i, width), scales), LoadVec(weight + i, width)), out + at + i, width);
    });
  }
}

// With x̂ = x · rstd and g = weight · d_out, the gradient of a row is rstd · (g - x̂ · mean(g · x̂)); it is added to d_residual, if there.
template <class T>
HWY_INLINE void NormBackwardRows(std::int64_t rows, std::size_t columns, T* d_x, const T* d_out, const T* d_residual, const T* x,
                                 const float* rstd, const T* weight) {
  const FloatTag d;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * columns;
    FloatVec products = hn::Zero(d);
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
      products = Fma(hn::Mul(LoadVec(weight + i, width), LoadVec(d_out + at + i, width)), LoadVec(x + at + i, width), products);
    });
    const float scale = rstd[row];
    const FloatVec scales = hn::Set(d, scale);
    const FloatVec along_x = hn::Set(d, -scale * scale * scale * (SumLanes(products) / static_cast<float>(columns)));
    ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
      const FloatVec through = hn::Mul(hn::Mul(LoadVec(weight + i, width), LoadVec(d_out + at + i, width)), scales);
      const FloatVec gradient = Fma(LoadVec(x + at + i, width), along_x, through);
      StoreVec(d_residual == nullptr ? gradient : hn::Add(gradient, LoadVec(d_residual + at + i, width)), d_x + at + i, width);
    });
  }
}

// d_weight of columns [begin, begin + count) += Σ over all rows; pointers stand at the first of the columns.
template <class T>
HWY_INLINE void NormBackwardWeightColumns(std::int64_t rows, std::size_t count, const Tensor& d_weight, std::int64_t begin, const T* d_out,
                                          const T* x, const float* rstd) {
  const FloatTag d;
  const auto stride = static_cast<std::size_t>(d_weight.elements());
  AddColumnSums(rows, count, d_weight, begin, [&](std::size_t row, std::size_t column, auto width, FloatVec sum) HWY_ATTR {
    const std::size_t at = row * stride + column;
    return Fma(LoadVec(d_out + at, width), hn::Mul(LoadVec(x + at, width), hn::Set(d, rstd[row])), sum);
  });
}

void NormForward(const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta, const Tensor& weight,
                 float eps, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = weight.elements(), at = begin * columns;
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    NormForwardRows<T>(end - begin, static_cast<std::size_t>(columns), out.as<T>() + at, delta.defined() ? residual.as<T>() + at : nullptr,
                       rstd.as<float>() + begin, x.as<T>() + at, elements_from<T>(delta, at), weight.as<T>(), eps);
  });
}

void NormBackwardInput(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& rstd,
                       const Tensor& weight, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = weight.elements(), at = begin * columns;
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    NormBackwardRows<T>(end - begin, static_cast<std::size_t>(columns), d_x.as<T>() + at, d_out.as<T>() + at,
                        elements_from<T>(d_residual, at), x.as<T>() + at, rstd.as<float>() + begin, weight.as<T>());
  });
}

// Columns [begin, end).
void NormBackwardWeight(const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd, std::int64_t begin,
                        std::int64_t end) {
  ForStorage(x.dtype(), [&](auto zero) HWY_ATTR {
    using T = decltype(zero);
    NormBackwardWeightColumns<T>(rstd.elements(), static_cast<std::size_t>(end - begin), d_weight, begin, d_out.as<T>() + begin,
                                 x.as<T>() + begin, rstd.as<float>());
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(NormForward);
HWY_EXPORT(NormBackwardInput);
HWY_EXPORT(NormBackwardWeight);

void rms_norm_forward(const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta,
                      const Tensor& weight, float eps) {
  require_compute_dtype("RMSNorm", {&x});
  require_dtype("RMSNorm", x.dtype(), {&out, &residual, &delta, &weight});
  require_fp32("RMSNorm", {&rstd});
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && out.elements() == x.elements(), x.elements(), out.elements(), rows, columns);
  BALEEN_CHECK(!delta.defined() || (delta.elements() == x.elements() && residual.defined() && residual.elements() == x.elements()));
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormForward)(out, residual, rstd, x, delta, weight, eps, begin, end);
  });
}

void rms_norm_backward_input(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& rstd,
                             const Tensor& weight) {
  require_compute_dtype("RMSNorm", {&x});
  require_dtype("RMSNorm", x.dtype(), {&d_x, &d_out, &d_residual, &weight});
  require_fp32("RMSNorm", {&rstd});
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements() && d_x.elements() == x.elements(), x.elements(), rows,
               columns);
  BALEEN_CHECK(!d_residual.defined() || d_residual.elements() == x.elements(), d_residual.elements(), x.elements());
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormBackwardInput)(d_x, d_out, d_residual, x, rstd, weight, begin, end);
  });
}

void rms_norm_backward_weight(const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd) {
  require_compute_dtype("RMSNorm", {&x});
  require_dtype("RMSNorm", x.dtype(), {&d_out});
  require_gradient_dtype("RMSNorm", {&d_weight}, x.dtype());
  require_fp32("RMSNorm", {&rstd});
  const std::int64_t rows = rstd.elements(), columns = d_weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements(), x.elements(), d_out.elements(), rows, columns);
  // A thread owns columns, whole cache lines of them, and walks all rows.
  parallel_ranges(columns, 16, worthwhile_rows(rows), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormBackwardWeight)(d_weight, d_out, x, rstd, begin, end);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
