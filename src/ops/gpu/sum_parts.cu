// One pass over all parts and the sum.
#include "ops/sum_parts.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

template <class T>
struct Parts {
  const T* at[most_parts];
  int count;
};

template <class T, int W, bool Add>
__global__ void add_parts(std::int64_t count, T* out, const Parts<T> parts, float scale) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W;
  if (i >= count) return;
  float sum[W];
  const Pack<T, W> first = load<T, W>(parts.at[0] + i);
  for (int j = 0; j < W; ++j) sum[j] = as_float(first.at[j]);
  for (int part = 1; part < parts.count; ++part) {
    const Pack<T, W> next = load<T, W>(parts.at[part] + i);
    for (int j = 0; j < W; ++j) sum[j] += as_float(next.at[j]);
  }
  Pack<T, W> result;
  for (int j = 0; j < W; ++j) result.at[j] = rounded<T>(__fmul_rn(sum[j], scale));  // never one operation with the addition below
  if constexpr (Add) {
    const Pack<T, W> held = load<T, W>(out + i);
    for (int j = 0; j < W; ++j) result.at[j] = rounded<T>(as_float(held.at[j]) + as_float(result.at[j]));
  }
  store(out + i, result);
}

}  // namespace

void sum_parts(Stream& stream, const Tensor& out, std::span<const Tensor> parts, float scale, bool add) {
  const std::int64_t count = out.elements();
  BALEEN_CHECK(!parts.empty() && parts.size() <= most_parts, parts.size());
  const void* least_aligned = out.data();
  for (const Tensor& part : parts) {
    BALEEN_CHECK(part.elements() == count && part.dtype() == out.dtype(), part.elements(), count);
    if (reinterpret_cast<std::uintptr_t>(part.data()) % 16 != 0) least_aligned = part.data();
  }
  if (count == 0) return;
  for_element_type(out.dtype(), "a sum over ranks", [&](auto zero) {
    using T = decltype(zero);
    Parts<T> all{{}, static_cast<int>(parts.size())};
    for (std::size_t part = 0; part < parts.size(); ++part) all.at[part] = parts[part].as<T>();
    for_width<T>(count, {out.data(), least_aligned}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      const auto kernel = add ? add_parts<T, W, true> : add_parts<T, W, false>;
      kernel<<<blocks_for(count, threads * W), threads, 0, native_stream(stream)>>>(count, out.as<T>(), all, scale);
    });
  });
  check_launch("a sum over ranks");
}

void load_sum_parts(Stream& stream) {
  const auto load_for = [&](auto zero) {
    using T = decltype(zero);
    constexpr int wide = 16 / sizeof(T);
    for (const auto kernel : {add_parts<T, wide, true>, add_parts<T, wide, false>, add_parts<T, 1, true>, add_parts<T, 1, false>})
      kernel<<<1, threads, 0, native_stream(stream)>>>(0, nullptr, Parts<T>{}, 1.0f);
  };
  for (const DType dtype : {DType::f32, DType::bf16}) for_element_type(dtype, "a sum over ranks", load_for);
  check_launch("a sum over ranks");
}

}  // namespace baleen::ops::gpu
