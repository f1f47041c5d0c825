#include "ops/gpu/kernel.cuh"
#include "ops/rope.h"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// A thread turns one pair: elements i and i + half of one head of one token.
template <class T>
__global__ void rotate_pairs(std::int64_t pairs, std::int64_t heads, std::int64_t half, T* x, std::int64_t row_stride, const float* cosines,
                             const float* sines, const std::int32_t* positions, std::int64_t position_count, float sign) {
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (pair >= pairs) return;
  const std::int64_t i = pair % half, head = pair / half % heads, token = pair / half / heads;
  T* first = x + token * row_stride + head * 2 * half + i;
  const std::int64_t position = positions[token];
  const bool known = position >= 0 && position < position_count;
  const float c = known ? cosines[position * half + i] : not_a_number(), s = known ? sign * sines[position * half + i] : not_a_number();
  const float a = as_float(first[0]), b = as_float(first[half]);
  first[0] = rounded<T>(a * c - b * s);
  first[half] = rounded<T>(b * c + a * s);
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
    rotate_pairs<T><<<blocks_for(pairs, threads), threads, 0, native_stream(stream)>>>(
        pairs, heads, half, x.as<T>(), row_stride, cosines.as<float>(), sines.as<float>(), positions.as<std::int32_t>(), cosines.size(0),
        inverse ? -1.0f : 1.0f);
  });
  check_launch("RoPE");
}

}  // namespace baleen::ops::gpu
