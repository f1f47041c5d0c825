// RMSNorm and LayerNorm of rows, with the residual addition before them. A block has one row and keeps it in registers between its passes.
#pragma once

#include <type_traits>

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {

// x [rows, C]; delta and residual are both null or both there; mean and bias belong to LayerNorm.
template <class T>
struct NormForward {
  std::int64_t columns;
  T *out, *residual;
  float *mean, *rstd;
  const T *x, *delta, *weight, *bias;
  float eps;
};

// The most threads a block may have whose threads hold P packs each: the registers of one multiprocessor are 65536.
template <int P>
inline constexpr int norm_threads = P <= 4 ? 1024 : 512;

// P packs of W elements a thread.
template <class T, int W, int P, bool Centred>
__global__ void __launch_bounds__(norm_threads<P>) norm_forward_row(NormForward<T> to) {
  const std::int64_t at = blockIdx.x * to.columns;
  const int first = static_cast<int>(threadIdx.x) * W, stride = static_cast<int>(blockDim.x) * W, columns = static_cast<int>(to.columns);
  Pack<T, W> values[P];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) values[p] = load<T, W>(to.x + at + i);
  float sum = 0, squares = 0;
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      if (to.delta != nullptr) {
        const Pack<T, W> added = load<T, W>(to.delta + at + i);
        for (int j = 0; j < W; ++j) values[p].at[j] = rounded<T>(as_float(values[p].at[j]) + as_float(added.at[j]));
        store(to.residual + at + i, values[p]);
      }
      for (int j = 0; j < W; ++j) {
        const float value = as_float(values[p].at[j]);
        Centred ? sum += value : squares += value * value;
      }
    }
  float mean = 0;
  if constexpr (Centred) {  // the variance in a second pass: no difference of large numbers
    mean = row_reduce<Sum>(sum, 0.0f) / static_cast<float>(columns);
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (first + p * stride < columns)
        for (int j = 0; j < W; ++j) squares += (as_float(values[p].at[j]) - mean) * (as_float(values[p].at[j]) - mean);
  }
  const float scale = 1.0f / sqrtf(row_reduce<Sum>(squares, 0.0f) / static_cast<float>(columns) + to.eps);
  if (threadIdx.x == 0) {
    to.rstd[blockIdx.x] = scale;
    if constexpr (Centred) to.mean[blockIdx.x] = mean;
  }
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      const Pack<T, W> weights = load<T, W>(to.weight + i);
      Pack<T, W> result, biases{};
      if constexpr (Centred) biases = load<T, W>(to.bias + i);
      for (int j = 0; j < W; ++j) {
        float value = (as_float(values[p].at[j]) - mean) * scale * as_float(weights.at[j]);
        if constexpr (Centred) value += as_float(biases.at[j]);
        result.at[j] = rounded<T>(value);
      }
      store(to.out + at + i, result);
    }
}

template <class T>
struct NormBackward {
  std::int64_t columns;
  T* d_x;
  const T *d_out, *d_residual, *x;
  const float *mean, *rstd;
  const T* weight;
};

// With x̂ = (x - mean) · rstd and g = weight · d_out, the gradient of a row is rstd · (g - mean(g) - x̂ · mean(g · x̂)), without the
// means of RMSNorm; it is added to d_residual, if there.
template <class T, int W, int P, bool Centred>
__global__ void __launch_bounds__(norm_threads<P>) norm_backward_row(NormBackward<T> to) {
  const std::int64_t at = blockIdx.x * to.columns;
  const int first = static_cast<int>(threadIdx.x) * W, stride = static_cast<int>(blockDim.x) * W, columns = static_cast<int>(to.columns);
  const float scale = to.rstd[blockIdx.x], mean = Centred ? to.mean[blockIdx.x] : 0.0f;
  Pack<T, W> d[P], x[P];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      d[p] = load<T, W>(to.d_out + at + i);
      x[p] = load<T, W>(to.x + at + i);
    }
  float sum = 0, products = 0;
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      const Pack<T, W> weights = load<T, W>(to.weight + i);
      for (int j = 0; j < W; ++j) {
        const float g = as_float(weights.at[j]) * as_float(d[p].at[j]);
        if constexpr (Centred) sum += g;
        products += g * ((as_float(x[p].at[j]) - mean) * scale);
      }
    }
  const float along_x = -row_reduce<Sum>(products, 0.0f) / static_cast<float>(columns);
  const float mean_g = Centred ? row_reduce<Sum>(sum, 0.0f) / static_cast<float>(columns) : 0.0f;
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      const Pack<T, W> weights = load<T, W>(to.weight + i);
      Pack<T, W> result{};
      if (to.d_residual != nullptr) result = load<T, W>(to.d_residual + at + i);
      for (int j = 0; j < W; ++j) {
        const float g = as_float(weights.at[j]) * as_float(d[p].at[j]), unit = (as_float(x[p].at[j]) - mean) * scale;
        result.at[j] = rounded<T>(as_float(result.at[j]) + scale * (g - mean_g + unit * along_x));
      }
      store(to.d_x + at + i, result);
    }
}

// Calls body(P, threads): packs of W elements a thread and threads a block that hold a row of `columns`.
template <class Body>
void for_row(std::int64_t columns, int width, Body&& body) {
  const auto fits = [&](auto packs) {
    unsigned threads = warp_size;
    while (threads * decltype(packs)::value * width < columns) threads *= 2;
    if (threads > norm_threads<decltype(packs)::value>) return false;
    body(packs, threads);
    return true;
  };
  if (!fits(std::integral_constant<int, 4>{}) && !fits(std::integral_constant<int, 16>{}))
    throw Error(ExitCode::bad_config, "rows of " + std::to_string(columns) + " elements are too long for the GPU's norms",
                "model.hidden_size", "use device = \"cpu\"");
}

}  // namespace baleen::ops::gpu
