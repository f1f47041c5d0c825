// What the GPU kernels share: wide accesses, conversions, reductions in a fixed order, launch checks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/gpu_api.h"
#include "ops/gpu/launch.h"
#include "tensor/tensor.h"

namespace baleen::ops::gpu {

static_assert(__cplusplus >= 202002L, "the GPU compiler reads these files as C++20");

inline constexpr int warp_size = 32;

// W consecutive elements, moved as one access.
template <class T, int W>
struct alignas(sizeof(T) * W) Pack {
  T at[W];
};

// The machine's own types of those sizes: the compiler splits a structure's copy where it likes.
template <int Bytes>
struct WordOf;
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

template <class T, int W>
__device__ Pack<T, W> load(const T* from) {
  using Word = typename WordOf<sizeof(Pack<T, W>)>::Type;
  const Word word = *reinterpret_cast<const Word*>(from);
  Pack<T, W> values;
  memcpy(&values, &word, sizeof word);
  return values;
}
template <class T, int W>
__device__ void store(T* to, const Pack<T, W>& values) {
  using Word = typename WordOf<sizeof(Pack<T, W>)>::Type;
  Word word;
  memcpy(&word, &values, sizeof word);
  *reinterpret_cast<Word*>(to) = word;
}

__host__ __device__ inline float as_float(float value) {
  return value;
}
__host__ __device__ inline float as_float(BFloat16 value) {
  return to_float(value);
}
template <class T>
__device__ T rounded(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else
    return {gpu_bfloat16_bits(value)};
}

// NaN as a value that was never computed.
__device__ inline float not_a_number() {
  return __int_as_float(0x7fc00000);
}

struct Sum {
  template <class V>
  __device__ static V combine(V a, V b) {
    return a + b;
  }
};
// As fmaxf, which passes over NaN: sums meet it anyway.
struct Greatest {
  __device__ static float combine(float a, float b) { return fmaxf(a, b); }
};

// The combination over a warp, the same bits in every lane.
template <class Op, class V>
__device__ V warp_reduce(V value) {
  for (int distance = warp_size / 2; distance > 0; distance /= 2) value = Op::combine(value, gpu_shuffle_xor(value, distance));
  return value;
}

// The combination over a block of Threads threads, in every thread. `identity` fills the lanes that the last step leaves over.
template <class Op, int Threads, class V>
__device__ V block_reduce(V value, V identity) {
  static_assert(Threads % warp_size == 0 && Threads <= warp_size * warp_size);
  __shared__ V partial[Threads / warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  value = warp_reduce<Op>(value);
  __syncthreads();  // the array may still be read by an earlier reduction
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return warp_reduce<Op>(lane < Threads / warp_size ? partial[lane] : identity);
}

// The same for a block of any whole number of warps.
template <class Op>
__device__ float row_reduce(float value, float identity) {
  __shared__ float partial[warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warps = static_cast<int>(blockDim.x) / warp_size;
  value = warp_reduce<Op>(value);
  if (warps == 1) return value;
  __syncthreads();  // the array may still be read by an earlier reduction
  if (lane == 0) partial[threadIdx.x / warp_size] = value;
  __syncthreads();
  return warp_reduce<Op>(lane < warps ? partial[lane] : identity);
}

// Calls body(T{}) for the element type that `dtype` names.
template <class Body>
void for_element_type(DType dtype, const char* operation, Body&& body) {
  if (dtype == DType::f32) return body(float{});
  if (dtype == DType::bf16) return body(BFloat16{});
  refuse_dtype(operation, dtype);
}

// Calls body(W) with as many elements as 16 bytes hold where `columns` and every pointer allow it, else with 1.
template <class T, class Body>
void for_width(std::int64_t columns, std::initializer_list<const void*> pointers, Body&& body) {
  constexpr int wide = 16 / sizeof(T);
  bool aligned = columns % wide == 0;
  for (const void* pointer : pointers) aligned = aligned && reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  if (aligned)
    body(std::integral_constant<int, wide>{});
  else
    body(std::integral_constant<int, 1>{});
}

}  // namespace baleen::ops::gpu
