#include "ops/norm.h"

#include "ops/gpu/column_sums.cuh"
#include "ops/gpu/row_norm.cuh"

namespace baleen::ops::gpu {
namespace {

template <class T, int W>
struct WeightTerms {
  std::int64_t columns;
  const T *d_out, *x;
  const float* rstd;

  template <class Add>
  __device__ void operator()(std::int64_t row, std::int64_t column, const Add& add) const {
    const Pack<T, W> d = load<T, W>(d_out + row * columns + column), values = load<T, W>(x + row * columns + column);
    const float scale = rstd[row];
    for (int j = 0; j < W; ++j) add(0, j, as_float(d.at[j]) * (as_float(values.at[j]) * scale));
  }
};

}  // namespace

void rms_norm_forward(Stream& stream, const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta,
                      const Tensor& weight, float eps) {
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && out.elements() == x.elements(), x.elements(), out.elements(), rows, columns);
  BALEEN_CHECK(!delta.defined() || (delta.elements() == x.elements() && residual.defined() && residual.elements() == x.elements()));
  if (rows == 0) return;
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    NormForward<T> to{columns, out.as<T>(), nullptr, nullptr, rstd.as<float>(), x.as<T>(), nullptr, weight.as<T>(), nullptr, eps};
    if (delta.defined()) to.residual = residual.as<T>(), to.delta = delta.as<T>();
    for_width<T>(columns, {to.out, to.residual, to.x, to.delta, to.weight}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      for_row<false>(columns, W, [&](auto packs, unsigned threads) {
        norm_forward_row<T, W, decltype(packs)::value, false><<<blocks_for(rows, 1), threads, 0, native_stream(stream)>>>(to);
      });
    });
  });
  check_launch("RMSNorm");
}

namespace {

// Checks the shapes and describes the pass over `partial`, or without the weight's sums where that is null.
template <class T>
NormBackward<T> backward_pass(const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x, const Tensor& rstd,
                              const Tensor& weight, void* partial) {
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements() && d_x.elements() == x.elements(), x.elements(), rows,
               columns);
  BALEEN_CHECK(!d_residual.defined() || d_residual.elements() == x.elements(), d_residual.elements(), x.elements());
  return {rows,      columns, d_x.as<T>(),      d_out.as<T>(),  d_residual.defined() ? d_residual.as<T>() : nullptr,
          x.as<T>(), nullptr, rstd.as<float>(), weight.as<T>(), static_cast<float*>(partial)};
}

}  // namespace

void rms_norm_backward_input(Stream& stream, const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x,
                             const Tensor& rstd, const Tensor& weight) {
  if (rstd.elements() == 0) return;
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    norm_backward<T, false, false>(native_stream(stream), backward_pass<T>(d_x, d_out, d_residual, x, rstd, weight, nullptr), {});
  });
}

std::size_t rms_norm_backward_workspace(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(1 * norm_backward_blocks(rows) * columns) * sizeof(float);
}

void rms_norm_backward(Stream& stream, const Tensor& d_x, const Tensor& d_weight, const Tensor& d_out, const Tensor& d_residual,
                       const Tensor& x, const Tensor& rstd, const Tensor& weight, void* workspace) {
  BALEEN_CHECK(d_weight.elements() == weight.elements(), d_weight.elements(), weight.elements());
  if (rstd.elements() == 0) return;
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    norm_backward<T, false, true>(native_stream(stream), backward_pass<T>(d_x, d_out, d_residual, x, rstd, weight, workspace),
                                  column_targets(d_weight));
  });
}

std::size_t rms_norm_backward_weight_workspace(std::int64_t rows, std::int64_t columns) {
  return column_sums_workspace(rows, columns, 1);
}

void rms_norm_backward_weight(Stream& stream, const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd,
                              void* workspace) {
  const std::int64_t rows = rstd.elements(), columns = d_weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements(), x.elements(), d_out.elements(), rows, columns);
  if (rows == 0 || columns == 0) return;
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {d_out.data(), x.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      add_column_sums<W>(native_stream(stream), rows, columns, column_targets(d_weight), workspace,
                         WeightTerms<T, W>{columns, d_out.as<T>(), x.as<T>(), rstd.as<float>()});
    });
  });
}

}  // namespace baleen::ops::gpu
