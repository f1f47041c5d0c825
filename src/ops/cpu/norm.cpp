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
void NormForwardRows(std::int64_t rows, std::size_t columns, float* out, float* residual, float* rstd, const float* x, const float* delta,
                     const float* weight, float eps) {
  const FloatTag d;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * columns;
    FloatVec squares = hn::Zero(d);
    const float* normalised = x + at;
    if (delta != nullptr) {
      ForVectors(columns, [&](std::size_t i, auto width) HWY_ATTR {
        const FloatVec sum = hn::Add(LoadVec(x + at + i, width), LoadVec(delta + at + i, width));
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
void NormBackwardRows(std::int64_t rows, std::size_t columns, float* d_x, const float* d_out, const float* d_residual, const float* x,
                      const float* rstd, const float* weight) {
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

// d_weight of columns [0, count) += Σ over all rows; pointers stand at the first of the columns, rows lie `stride` elements apart.
void NormBackwardWeightColumns(std::int64_t rows, std::size_t count, std::size_t stride, float* d_weight, const float* d_out, const float* x,
                               const float* rstd) {
  const FloatTag d;
  AddColumnSums(rows, count, d_weight, [&](std::size_t row, std::size_t column, auto width, FloatVec sum) HWY_ATTR {
    const std::size_t at = row * stride + column;
    return Fma(LoadVec(d_out + at, width), hn::Mul(LoadVec(x + at, width), hn::Set(d, rstd[row])), sum);
  });
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(NormForwardRows);
HWY_EXPORT(NormBackwardRows);
HWY_EXPORT(NormBackwardWeightColumns);

void rms_norm_forward(const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta,
                      const Tensor& weight, float eps) {
  require_fp32("RMSNorm", {&out, &residual, &rstd, &x, &delta, &weight});
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && out.elements() == x.elements(), x.elements(), out.elements(), rows, columns);
  BALEEN_CHECK(!delta.defined() || (delta.elements() == x.elements() && residual.defined() && residual.elements() == x.elements()));
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * columns;
    HWY_DYNAMIC_DISPATCH(NormForwardRows)
    (end - begin, static_cast<std::size_t>(columns), out.as<float>() + at, delta.defined() ? residual.as<float>() + at : nullptr,
     rstd.as<float>() + begin, x.as<float>() + at, delta.defined() ? delta.as<float>() + at : nullptr, weight.as<float>(), eps);
  });
}

void rms_norm_backward_input(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& rstd,
                             const Tensor& weight) {
  require_fp32("RMSNorm", {&d_x, &d_out, &d_residual, &x, &rstd, &weight});
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements() && d_x.elements() == x.elements(), x.elements(), rows, columns);
  BALEEN_CHECK(!d_residual.defined() || d_residual.elements() == x.elements(), d_residual.elements(), x.elements());
  parallel_ranges(rows, 1, worthwhile_rows(columns), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * columns;
    HWY_DYNAMIC_DISPATCH(NormBackwardRows)
    (end - begin, static_cast<std::size_t>(columns), d_x.as<float>() + at, d_out.as<float>() + at,
     d_residual.defined() ? d_residual.as<float>() + at : nullptr, x.as<float>() + at, rstd.as<float>() + begin, weight.as<float>());
  });
}

void rms_norm_backward_weight(const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd) {
  require_fp32("RMSNorm", {&d_weight, &d_out, &x, &rstd});
  const std::int64_t rows = rstd.elements(), columns = d_weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements(), x.elements(), d_out.elements(), rows, columns);
  // A thread owns columns, whole cache lines of them, and walks all rows.
  parallel_ranges(columns, 16, worthwhile_rows(rows), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(NormBackwardWeightColumns)
    (rows, static_cast<std::size_t>(end - begin), static_cast<std::size_t>(columns), d_weight.as<float>() + begin, d_out.as<float>() + begin,
     x.as<float>() + begin, rstd.as<float>());
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
