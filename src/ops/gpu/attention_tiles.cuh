// What the halves of attention share. Simple kernels in fp32: a block has 32 rows (queries or keys) and walks over tiles of 32 of the other
// kind; a warp owns 4 of its rows and holds their sums in registers, a lane has every 32nd column. Scores exist for one tile at a time, a
// lane a column of the tile.
#pragma once

#include "ops/attention.h"
#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {

inline constexpr int tile = 32, warps = 8, rows_of_warp = tile / warps, attention_threads = warps * warp_size;
inline constexpr std::int64_t most_head_dim = 256;

struct Range {
  std::int64_t begin, end;
};

// What a query sees, as indices into the keys.
struct Visible {
  const AttentionShape& shape;
  const std::int32_t* document_begin;  // [B·Tq] or null

  __device__ Range of(std::int64_t b, std::int64_t query) const {
    const std::int64_t first = document_begin == nullptr ? 0 : document_begin[b * shape.query_length + query] - shape.key_offset;
    const std::int64_t last = shape.query_offset + query - shape.key_offset;
    return {max(std::int64_t{0}, first), min(shape.key_length, last + 1)};
  }
};

// Rows of a tile in shared memory are an odd number of words apart, so that a column of it touches every bank.
__host__ __device__ inline int padded(std::int64_t head_dim) {
  return static_cast<int>(head_dim) | 1;
}
inline std::size_t tile_floats(std::int64_t head_dim) {
  return static_cast<std::size_t>(tile) * static_cast<std::size_t>(padded(head_dim));
}

// to [32, padded D] = rows [first, first + 32) of `from`, zeros beyond `end`.
template <class T>
__device__ void load_tile(float* to, const T* from, std::int64_t stride, std::int64_t first, std::int64_t end, int head_dim) {
  for (int at = static_cast<int>(threadIdx.x); at < tile * head_dim; at += attention_threads) {
    const int row = at / head_dim, i = at % head_dim;
    to[row * padded(head_dim) + i] = first + row < end ? as_float(from[(first + row) * stride + i]) : 0.0f;
  }
}

__device__ inline float dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// Calls body(G) with the number of 32-column groups that hold a head, rounded up to a power of two.
template <class Body>
void for_groups(std::int64_t head_dim, Body&& body) {
  if (head_dim <= 32) return body(std::integral_constant<int, 1>{});
  if (head_dim <= 64) return body(std::integral_constant<int, 2>{});
  if (head_dim <= 128) return body(std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 8>{});
}

// Checks what the pointers cannot say, and sets the default of key_batch_stride.
AttentionShape checked(AttentionShape shape, const Tensor& document_begin);

inline const std::int32_t* documents_of(const Tensor& document_begin) {
  return document_begin.defined() ? document_begin.as<std::int32_t>() : nullptr;
}

}  // namespace baleen::ops::gpu
