#include "ops/elementwise.h"
#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

template <class T, int W>
__global__ void add_elements(std::int64_t count, T* out, const T* a, const T* b) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W;
  if (i >= count) return;
  const Pack<T, W> left = load<T, W>(a + i), right = load<T, W>(b + i);
  Pack<T, W> sum;
  for (int j = 0; j < W; ++j) sum.at[j] = rounded<T>(as_float(left.at[j]) + as_float(right.at[j]));
  store(out + i, sum);
}

}  // namespace

void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b) {
  const std::int64_t count = out.elements();
  BALEEN_CHECK(a.elements() == count && b.elements() == count, a.elements(), b.elements(), count);
  if (count == 0) return;
  for_element_type(out.dtype(), "addition", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(count, {out.data(), a.data(), b.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      add_elements<T, W><<<blocks_for(count, threads * W), threads, 0, native_stream(stream)>>>(count, out.as<T>(), a.as<T>(), b.as<T>());
    });
  });
  check_launch("addition");
}

}  // namespace baleen::ops::gpu
