// Packs of elements as floats and back. Two bf16 lie in a word of the machine, and one instruction makes either a float; taken out as 16
// bits of their own they cost two.
#pragma once

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {

__device__ inline float low_half(std::uint32_t word) {
  return __uint_as_float(word << 16);
}
__device__ inline float high_half(std::uint32_t word) {
  return __uint_as_float(word & 0xffff0000u);
}
__device__ inline std::uint32_t rounded_halves(float low, float high) {
  return gpu_bfloat16_bits(low) | static_cast<std::uint32_t>(gpu_bfloat16_bits(high)) << 16;
}

template <class T, int W>
inline constexpr bool of_whole_words = std::is_same_v<T, BFloat16> && W % 2 == 0;

template <class T, int W>
__device__ void unpack(float (&to)[W], const Pack<T, W>& from) {
  if constexpr (of_whole_words<T, W>) {
    std::uint32_t words[W / 2];
    memcpy(words, &from, sizeof words);
    for (int j = 0; j < W; j += 2) to[j] = low_half(words[j / 2]), to[j + 1] = high_half(words[j / 2]);
  } else {
    for (int j = 0; j < W; ++j) to[j] = as_float(from.at[j]);
  }
}
template <class T, int W>
__device__ Pack<T, W> rounded_pack(const float (&from)[W]) {
  Pack<T, W> pack;
  if constexpr (of_whole_words<T, W>) {
    std::uint32_t words[W / 2];
    for (int j = 0; j < W; j += 2) words[j / 2] = rounded_halves(from[j], from[j + 1]);
    memcpy(&pack, words, sizeof words);
  } else {
    for (int j = 0; j < W; ++j) pack.at[j] = rounded<T>(from[j]);
  }
  return pack;
}

}  // namespace baleen::ops::gpu
