#include "ops/bias.h"

#include "ops/gpu/column_sums.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// A block adds the bias to one row.
template <class T, int W>
__global__ void add_to_row(std::int64_t columns, std::int64_t row_stride, T* y, const T* bias) {
  T* const row = y + blockIdx.x * row_stride;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    Pack<T, W> values = load<T, W>(row + i);
    const Pack<T, W> added = load<T, W>(bias + i);
    for (int j = 0; j < W; ++j) values.at[j] = rounded<T>(as_float(values.at[j]) + as_float(added.at[j]));
    store(row + i, values);
  }
}

template <class T, int W>
struct BiasTerms {
  std::int64_t row_stride;
  const T* d_y;

  template <class Add>
  __device__ void operator()(std::int64_t row, std::int64_t column, const Add& add) const {
    const Pack<T, W> d = load<T, W>(d_y + row * row_stride + column);
    for (int j = 0; j < W; ++j) add(0, j, as_float(d.at[j]));
  }
};

// As for_width, where rows lie `row_stride` elements apart.
template <class T, class Body>
void for_strided_width(std::int64_t columns, std::int64_t row_stride, std::initializer_list<const void*> pointers, Body&& body) {
  for_width<T>(row_stride % (16 / static_cast<std::int64_t>(sizeof(T))) == 0 ? columns : 1, pointers, body);
}

}  // namespace

void bias_add(Stream& stream, const Tensor& y, std::int64_t row_stride, const Tensor& bias) {
  const std::int64_t rows = y.size(0), columns = y.size(1);
  BALEEN_CHECK(bias.elements() == columns && row_stride >= columns, bias.elements(), columns, row_stride);
  if (y.elements() == 0) return;
  for_element_type(y.dtype(), "a bias", [&](auto zero) {
    using T = decltype(zero);
    for_strided_width<T>(columns, row_stride, {y.data(), bias.data()}, [&](auto width) {
      add_to_row<T, decltype(width)::value>
          <<<blocks_for(rows, 1), threads, 0, native_stream(stream)>>>(columns, row_stride, y.as<T>(), bias.as<T>());
    });
  });
  check_launch("a bias");
}

std::size_t bias_backward_workspace(std::int64_t rows, std::int64_t columns) {
  return column_sums_workspace(rows, columns, 1);
}

void bias_backward(Stream& stream, const Tensor& d_bias, const Tensor& d_y, std::int64_t row_stride, void* workspace) {
  const std::int64_t rows = d_y.size(0), columns = d_y.size(1);
  BALEEN_CHECK(d_bias.elements() == columns && row_stride >= columns, d_bias.elements(), columns, row_stride);
  if (d_y.elements() == 0) return;
  for_element_type(d_y.dtype(), "a bias", [&](auto zero) {
    using T = decltype(zero);
    for_strided_width<T>(columns, row_stride, {d_y.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      add_column_sums<W>(native_stream(stream), rows, columns, column_targets(d_bias), workspace, BiasTerms<T, W>{row_stride, d_y.as<T>()});
    });
  });
}

}  // namespace baleen::ops::gpu
