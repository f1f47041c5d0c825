#include "ops/attention_merge.h"
#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int warps = 8;

// A warp has one head of one token of the part.
template <class T>
__global__ void merge_heads(AttentionMergeShape shape, float* out, float* lse, const T* part, const float* part_lse) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size;
  if (item >= shape.batch * shape.rows * shape.heads) return;
  const std::int64_t head = item % shape.heads, token = item / shape.heads, row = token % shape.rows, b = token / shape.rows;
  float* const sum = lse + (b * shape.heads + head) * shape.length + shape.first + row;
  const float before = *sum, added = part_lse[(b * shape.heads + head) * shape.rows + row];
  const float greater = before > added ? before : added, less = before > added ? added : before;
  if (greater == -INFINITY) return;  // neither has seen a key: out stays 0
  const float together = greater + log1pf(expf(less - greater)), keep = expf(before - together), take = expf(added - together);
  float* const to = out + (b * shape.length + shape.first + row) * shape.out_stride + head * shape.head_dim;
  const T* const from = part + (token * shape.heads + head) * shape.head_dim;
  for (std::int64_t i = threadIdx.x % warp_size; i < shape.head_dim; i += warp_size) to[i] = fmaf(take, as_float(from[i]), keep * to[i]);
  gpu_sync_warp();  // every lane has read the sum
  if (threadIdx.x % warp_size == 0) *sum = together;
}

}  // namespace

void attention_merge(Stream& stream, const AttentionMergeShape& shape, const Tensor& out, const Tensor& lse, const Tensor& part,
                     const Tensor& part_lse) {
  BALEEN_CHECK(shape.first >= 0 && shape.first + shape.rows <= shape.length, shape.first, shape.rows, shape.length);
  const std::int64_t items = shape.batch * shape.rows * shape.heads;
  if (items == 0) return;
  for_element_type(part.dtype(), "merging attention", [&](auto zero) {
    using T = decltype(zero);
    merge_heads<T><<<blocks_for(items, warps), warps * warp_size, 0, native_stream(stream)>>>(shape, out.as<float>(), lse.as<float>(),
                                                                                              part.as<T>(), part_lse.as<float>());
  });
  check_launch("merging attention");
}

}  // namespace baleen::ops::gpu
