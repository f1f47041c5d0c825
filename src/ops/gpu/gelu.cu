#include "ops/gelu.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// ½ (1 + tanh(u)) is sigmoid(2u), which keeps its relative accuracy where tanh is near -1. With z = 2u = a·x + b·x³:
//   gelu = x · σ(z),  gelu' = σ + x · σ · (1 - σ) · (a + 3b·x²).
constexpr float a = 1.5957691216057308f, b = 0.07135481627260025f;

// Beyond ±11 σ is 0 or 1 to the last bit; without the bound x² could overflow to 0 · ∞. A NaN stays one.
__device__ float bounded(float x) {
  return x > 11.0f ? 11.0f : x < -11.0f ? -11.0f : x;
}

__device__ float sigmoid_of(float x) {
  return 1.0f / (1.0f + expf(-x * (a + b * x * x)));
}

template <class T, int W>
__global__ void forward_elements(std::int64_t count, T* out, const T* x) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W;
  if (i >= count) return;
  Pack<T, W> values = load<T, W>(x + i);
  for (int j = 0; j < W; ++j) {
    const float value = as_float(values.at[j]);
    values.at[j] = rounded<T>(value * sigmoid_of(bounded(value)));
  }
  store(out + i, values);
}

template <class T, int W>
__global__ void backward_elements(std::int64_t count, T* d_x, const T* d_out, const T* x) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W;
  if (i >= count) return;
  const Pack<T, W> values = load<T, W>(x + i), ds = load<T, W>(d_out + i);
  Pack<T, W> result;
  for (int j = 0; j < W; ++j) {
    const float value = as_float(values.at[j]), near = bounded(value), sigmoid = sigmoid_of(near);
    const float slope = value * (1.0f - sigmoid) * (a + 3.0f * b * near * near);
    result.at[j] = rounded<T>(as_float(ds.at[j]) * (sigmoid + sigmoid * slope));
  }
  store(d_x + i, result);
}

}  // namespace

void gelu_forward(Stream& stream, const Tensor& out, const Tensor& x) {
  const std::int64_t count = out.elements();
  BALEEN_CHECK(x.elements() == count, x.elements(), count);
  if (count == 0) return;
  for_element_type(x.dtype(), "GELU", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(count, {out.data(), x.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      forward_elements<T, W><<<blocks_for(count, threads * W), threads, 0, native_stream(stream)>>>(count, out.as<T>(), x.as<T>());
    });
  });
  check_launch("GELU");
}

void gelu_backward(Stream& stream, const Tensor& d_x, const Tensor& d_out, const Tensor& x) {
  const std::int64_t count = x.elements();
  BALEEN_CHECK(d_x.elements() == count && d_out.elements() == count, d_x.elements(), d_out.elements(), count);
  if (count == 0) return;
  for_element_type(x.dtype(), "GELU", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(count, {d_x.data(), d_out.data(), x.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      backward_elements<T, W>
          <<<blocks_for(count, threads * W), threads, 0, native_stream(stream)>>>(count, d_x.as<T>(), d_out.as<T>(), x.as<T>());
    });
  });
  check_launch("GELU backward");
}

}  // namespace baleen::ops::gpu
