#include "ops/norm.h"

#include <algorithm>

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// A block has one row of x [rows, C]; delta and residual are both null or both there.
template <class T, int W>
__global__ void forward_row(std::int64_t columns, T* out, T* residual, float* rstd, const T* x, const T* delta, const T* weight,
                            float eps) {
  const std::int64_t at = blockIdx.x * columns;
  float squares = 0;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    Pack<T, W> values = load<T, W>(x + at + i);
    if (delta != nullptr) {
      const Pack<T, W> added = load<T, W>(delta + at + i);
      for (int j = 0; j < W; ++j) values.at[j] = rounded<T>(as_float(values.at[j]) + as_float(added.at[j]));
      store(residual + at + i, values);
    }
    for (int j = 0; j < W; ++j) squares += as_float(values.at[j]) * as_float(values.at[j]);
  }
  squares = block_reduce<Sum, threads>(squares, 0.0f);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(columns) + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
  const T* normalised = delta != nullptr ? residual : x;  // a thread reads what it has written itself
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> values = load<T, W>(normalised + at + i), weights = load<T, W>(weight + i);
    Pack<T, W> result;
    for (int j = 0; j < W; ++j) result.at[j] = rounded<T>(as_float(values.at[j]) * scale * as_float(weights.at[j]));
    store(out + at + i, result);
  }
}

// With x̂ = x · rstd and g = weight · d_out, the gradient of a row is rstd · (g - x̂ · mean(g · x̂)); it is added to d_residual, if there.
template <class T, int W>
__global__ void backward_row(std::int64_t columns, T* d_x, const T* d_out, const T* d_residual, const T* x, const float* rstd,
                             const T* weight) {
  const std::int64_t at = blockIdx.x * columns;
  float products = 0;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> d = load<T, W>(d_out + at + i), values = load<T, W>(x + at + i), weights = load<T, W>(weight + i);
    for (int j = 0; j < W; ++j) products += as_float(weights.at[j]) * as_float(d.at[j]) * as_float(values.at[j]);
  }
  products = block_reduce<Sum, threads>(products, 0.0f);
  const float scale = rstd[blockIdx.x], along_x = -scale * scale * scale * (products / static_cast<float>(columns));
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> d = load<T, W>(d_out + at + i), values = load<T, W>(x + at + i), weights = load<T, W>(weight + i);
    Pack<T, W> result;
    for (int j = 0; j < W; ++j) {
      float gradient = as_float(values.at[j]) * along_x + as_float(weights.at[j]) * as_float(d.at[j]) * scale;
      if (d_residual != nullptr) gradient += as_float(d_residual[at + i + j]);
      result.at[j] = rounded<T>(gradient);
    }
    store(d_x + at + i, result);
  }
}

// The weight's gradient: rows are cut into chunks, a function of their number alone, whose sums a second kernel adds in order.
constexpr int strip = 32, lanes = 8;  // a block: 32 columns, each summed by 8 threads

std::int64_t chunks_of(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 64, 1, 64);
}

template <class T>
__global__ void weight_chunks(std::int64_t rows, std::int64_t columns, float* partial, const T* d_out, const T* x, const float* rstd) {
  __shared__ float sums[lanes][strip];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * strip + threadIdx.x, chunk = blockIdx.y;
  const std::int64_t begin = rows * chunk / gridDim.y, end = rows * (chunk + 1) / gridDim.y;
  float sum = 0;
  if (column < columns)
    for (std::int64_t row = begin + threadIdx.y; row < end; row += lanes)
      sum += as_float(d_out[row * columns + column]) * (as_float(x[row * columns + column]) * rstd[row]);
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int lane = 1; lane < lanes; ++lane) sum += sums[lane][threadIdx.x];
  partial[chunk * columns + column] = sum;
}

__global__ void add_chunks(std::int64_t chunks, std::int64_t columns, float* d_weight, const float* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * columns + column];
  d_weight[column] += sum;
}

}  // namespace

void rms_norm_forward(Stream& stream, const Tensor& out, const Tensor& residual, const Tensor& rstd, const Tensor& x, const Tensor& delta,
                      const Tensor& weight, float eps) {
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && out.elements() == x.elements(), x.elements(), out.elements(), rows, columns);
  BALEEN_CHECK(!delta.defined() || (delta.elements() == x.elements() && residual.defined() && residual.elements() == x.elements()));
  if (rows == 0) return;
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    T* const sums = delta.defined() ? residual.as<T>() : nullptr;
    const T* const added = delta.defined() ? delta.as<T>() : nullptr;
    for_width<T>(columns, {out.data(), sums, x.data(), added, weight.data()}, [&](auto width) {
      forward_row<T, decltype(width)::value><<<blocks_for(rows, 1), threads, 0, native_stream(stream)>>>(
          columns, out.as<T>(), sums, rstd.as<float>(), x.as<T>(), added, weight.as<T>(), eps);
    });
  });
  check_launch("RMSNorm");
}

void rms_norm_backward_input(Stream& stream, const Tensor& d_x, const Tensor& d_out, const Tensor& d_residual, const Tensor& x,
                             const Tensor& rstd, const Tensor& weight) {
  const std::int64_t rows = rstd.elements(), columns = weight.elements();
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements() && d_x.elements() == x.elements(), x.elements(), rows,
               columns);
  BALEEN_CHECK(!d_residual.defined() || d_residual.elements() == x.elements(), d_residual.elements(), x.elements());
  if (rows == 0) return;
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    const T* const residual = d_residual.defined() ? d_residual.as<T>() : nullptr;
    for_width<T>(columns, {d_x.data(), d_out.data(), x.data(), weight.data()}, [&](auto width) {
      backward_row<T, decltype(width)::value><<<blocks_for(rows, 1), threads, 0, native_stream(stream)>>>(
          columns, d_x.as<T>(), d_out.as<T>(), residual, x.as<T>(), rstd.as<float>(), weight.as<T>());
    });
  });
  check_launch("RMSNorm backward");
}

std::size_t rms_norm_backward_weight_workspace(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(chunks_of(rows) * columns) * sizeof(float);
}

void rms_norm_backward_weight(Stream& stream, const Tensor& d_weight, const Tensor& d_out, const Tensor& x, const Tensor& rstd,
                              void* workspace) {
  const std::int64_t rows = rstd.elements(), columns = d_weight.elements(), chunks = chunks_of(rows);
  BALEEN_CHECK(x.elements() == rows * columns && d_out.elements() == x.elements(), x.elements(), d_out.elements(), rows, columns);
  if (rows == 0 || columns == 0) return;
  auto* partial = static_cast<float*>(workspace);
  const gpuStream_t native = native_stream(stream);
  for_element_type(x.dtype(), "RMSNorm", [&](auto zero) {
    using T = decltype(zero);
    weight_chunks<T><<<dim3(blocks_for(columns, strip), static_cast<unsigned>(chunks)), dim3(strip, lanes), 0, native>>>(
        rows, columns, partial, d_out.as<T>(), x.as<T>(), rstd.as<float>());
  });
  check_launch("RMSNorm weight gradient");
  add_chunks<<<blocks_for(columns, threads), threads, 0, native>>>(chunks, columns, d_weight.as<float>(), partial);
  check_launch("RMSNorm weight gradient");
}

}  // namespace baleen::ops::gpu
