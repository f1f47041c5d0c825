#include "ops/gpu/kernel.cuh"
#include "ops/gpu/swiglu.cuh"
#include "ops/swiglu.h"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// Forward the exact form takes longer than the memory; backward it does not, and the same kernel with the fast one was slower (380 for 337
// µs at 16,384 x 8,960).
template <class T>
__device__ float forward_sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>)
    return sigmoid(x);
  else
    return fast_sigmoid(x);
}

// A thread has W elements of one row: out [rows, F], gate_up [rows, 2F].
template <class T, int W>
__global__ void forward_elements(unsigned packs, unsigned packs_of_row, T* out, const T* gate_up) {
  const unsigned pack = blockIdx.x * threads + threadIdx.x;
  if (pack >= packs) return;
  const std::int64_t columns = static_cast<std::int64_t>(packs_of_row) * W, i = static_cast<std::int64_t>(pack) * W;
  const std::int64_t at = pack / packs_of_row * columns + i;  // 2F · row + column
  const Pack<T, W> gates = load<T, W>(gate_up + at), ups = load<T, W>(gate_up + at + columns);
  Pack<T, W> result;
  for (int j = 0; j < W; ++j) {
    const float gate = as_float(gates.at[j]);
    result.at[j] = rounded<T>(gate * forward_sigmoid<T>(gate) * as_float(ups.at[j]));
  }
  store(out + i, result);
}

template <class T, int W>
__global__ void backward_elements(unsigned packs, unsigned packs_of_row, T* d_gate_up, const T* d_out, const T* gate_up) {
  const unsigned pack = blockIdx.x * threads + threadIdx.x;
  if (pack >= packs) return;
  const std::int64_t columns = static_cast<std::int64_t>(packs_of_row) * W, i = static_cast<std::int64_t>(pack) * W;
  const std::int64_t at = pack / packs_of_row * columns + i;
  const Pack<T, W> gates = load<T, W>(gate_up + at), ups = load<T, W>(gate_up + at + columns), ds = load<T, W>(d_out + i);
  Pack<T, W> d_gates, d_ups;
  for (int j = 0; j < W; ++j) {
    const float gate = as_float(gates.at[j]), d = as_float(ds.at[j]), slope = sigmoid(gate);
    d_gates.at[j] = rounded<T>(gate_gradient(d, gate, as_float(ups.at[j]), slope));
    d_ups.at[j] = rounded<T>(up_gradient(d, gate, slope));
  }
  store(d_gate_up + at, d_gates);
  store(d_gate_up + at + columns, d_ups);
}

}  // namespace

void swiglu_forward(Stream& stream, const Tensor& out, const Tensor& gate_up) {
  const std::int64_t rows = out.size(0), columns = out.size(1), count = rows * columns;
  BALEEN_CHECK(gate_up.size(0) == rows && gate_up.size(1) == 2 * columns, gate_up.size(0), gate_up.size(1), rows, columns);
  if (count == 0) return;
  for_element_type(out.dtype(), "SwiGLU", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {out.data(), gate_up.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      BALEEN_CHECK(count / W < 0xffffffff, count);
      forward_elements<T, W><<<blocks_for(count / W, threads), threads, 0, native_stream(stream)>>>(
          static_cast<unsigned>(count / W), static_cast<unsigned>(columns / W), out.as<T>(), gate_up.as<T>());
    });
  });
  check_launch("SwiGLU");
}

void swiglu_backward(Stream& stream, const Tensor& d_gate_up, const Tensor& d_out, const Tensor& gate_up) {
  const std::int64_t rows = d_out.size(0), columns = d_out.size(1), count = rows * columns;
  BALEEN_CHECK(gate_up.size(0) == rows && gate_up.size(1) == 2 * columns, gate_up.size(0), gate_up.size(1), rows, columns);
  BALEEN_CHECK(d_gate_up.elements() == gate_up.elements() && (count == 0 || d_gate_up.data() != gate_up.data()));
  if (count == 0) return;
  for_element_type(d_out.dtype(), "SwiGLU", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {d_gate_up.data(), d_out.data(), gate_up.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      BALEEN_CHECK(count / W < 0xffffffff, count);
      backward_elements<T, W><<<blocks_for(count / W, threads), threads, 0, native_stream(stream)>>>(
          static_cast<unsigned>(count / W), static_cast<unsigned>(columns / W), d_gate_up.as<T>(), d_out.as<T>(), gate_up.as<T>());
    });
  });
  check_launch("SwiGLU backward");
}

}  // namespace baleen::ops::gpu
