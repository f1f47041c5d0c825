#include "ops/gpu/kernel.cuh"
#include "ops/rope.h"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// A thread turns W pairs: elements i, … and i + half, … of one head of one token.
template <class T, int W>
__global__ void rotate_pairs(unsigned packs, unsigned heads, unsigned half, T* x, std::int64_t row_stride, const float* cosines,
                             const float* sines, const std::int32_t* positions, std::int64_t position_count, float sign) {
  const unsigned pack = blockIdx.x * threads + threadIdx.x;
  if (pack >= packs) return;
  const unsigned of_head = half / W, i = pack % of_head * W, row = pack / of_head, head = row % heads, token = row / heads;
  T* const first = x + token * row_stride + static_cast<std::int64_t>(head) * 2 * half + i;
  const std::int64_t position = positions[token];
  const bool known = position >= 0 && position < position_count;
  Pack<T, W> a = load<T, W>(first), b = load<T, W>(first + half);
  for (int j = 0; j < W; ++j) {
    const float c = known ? cosines[position * half + i + j] : not_a_number(), s = known ? sign * sines[position * half + i + j] : c;
    const float left = as_float(a.at[j]), right = as_float(b.at[j]);
    a.at[j] = rounded<T>(left * c - right * s);
    b.at[j] = rounded<T>(right * c + left * s);
  }
  store(first, a);
  store(first + half, b);
}

}  // namespace

void rope(Stream& stream, const Tensor& x, std::int64_t row_stride, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
          bool inverse) {
  require_fp32("RoPE", {&cosines, &sines});
  BALEEN_CHECK(x.dims() == 3 && x.size(2) % 2 == 0, x.dims(), x.size(2));
  const std::int64_t tokens = x.size(0), heads = x.size(1), half = x.size(2) / 2, pairs = tokens * heads * half;
  BALEEN_CHECK(cosines.size(-1) == half && sines.size(-1) == half && cosines.size(0) == sines.size(0), cosines.size(-1), sines.size(-1),
               half);
  BALEEN_CHECK(positions.elements() == tokens && row_stride >= heads * half * 2, positions.elements(), tokens, row_stride);
  if (pairs == 0) return;
  for_element_type(x.dtype(), "RoPE", [&](auto zero) {
    using T = decltype(zero);
    constexpr std::int64_t wide = 16 / sizeof(T);
    for_width<T>(row_stride % wide == 0 ? half : 1, {x.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      BALEEN_CHECK(pairs / W < 0xffffffff, pairs);
      rotate_pairs<T, W><<<blocks_for(pairs / W, threads), threads, 0, native_stream(stream)>>>(
          static_cast<unsigned>(pairs / W), static_cast<unsigned>(heads), static_cast<unsigned>(half), x.as<T>(), row_stride,
          cosines.as<float>(), sines.as<float>(), positions.as<std::int32_t>(), cosines.size(0), inverse ? -1.0f : 1.0f);
    });
  });
  check_launch("RoPE");
}

}  // namespace baleen::ops::gpu
