// The backward pass: probabilities are recomputed from the log-sum-exp, tile by tile. With P the probabilities and ∂ gradients,
//   ∂v = Pᵀ ∂out;  ∂P = ∂out vᵀ;  ∂s = P ∘ (∂P - Σ ∂out ∘ out);  ∂q = scale · ∂s k;  ∂k = scale · ∂sᵀ q.
// One kernel has a block a tile of keys and sums over queries, another a block a tile of queries and sums over keys: each sum has one owner
// and one order, at the price of forming the scores twice.
#include "ops/gpu/attention_library.h"
#include "ops/gpu/attention_tiles.cuh"

#include <algorithm>

namespace baleen::ops::gpu {
namespace {

template <class T>
struct Inputs {
  const T *d_out, *q, *k, *v, *out;
  const float *lse, *delta;  // [B, H, Tq]; delta = Σ ∂out ∘ out
  const std::int32_t* document_begin;
};

// A warp has one query of one head.
template <class T>
__global__ void row_products(AttentionShape shape, float* delta, const T* d_out, const T* out) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp_size;
  if (item >= shape.batch * shape.heads * shape.query_length) return;
  const std::int64_t query = item % shape.query_length, head = item / shape.query_length % shape.heads,
                     b = item / shape.query_length / shape.heads;
  const std::int64_t at = (b * shape.query_length + query) * shape.out_stride + head * shape.head_dim;
  float sum = 0;
  for (std::int64_t i = threadIdx.x % warp_size; i < shape.head_dim; i += warp_size) sum += as_float(d_out[at + i]) * as_float(out[at + i]);
  sum = warp_reduce<Sum>(sum);
  if (threadIdx.x % warp_size == 0) delta[item] = sum;
}

// Tiles of queries and their ∂out against the block's 32 keys: a lane has one query, a warp 4 keys.
template <int G>
__device__ void add_queries(float (&d_keys)[rows_of_warp][G], float (&d_values)[rows_of_warp][G], const float* keys, const float* values,
                            const float* queries, const float* d_outs, Range visible, float lse, float delta, std::int64_t first_key,
                            float scale, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size, row_stride = padded(head_dim);
  for (int r = 0; r < rows_of_warp; ++r) {
    const bool seen = first_key + r >= visible.begin && first_key + r < visible.end;
    float p = 0, d_score = 0;
    if (seen) {
      p = expf(scale * dot(keys + r * row_stride, queries + lane * row_stride, head_dim) - lse);
      d_score = p * (dot(values + r * row_stride, d_outs + lane * row_stride, head_dim) - delta);
    }
    for (unsigned left = gpu_ballot(seen); left != 0; left &= left - 1) {
      const int query = __ffs(static_cast<int>(left)) - 1;
      const float share = gpu_shuffle(p, query), slope = gpu_shuffle(d_score, query);
      for (int g = 0; g < G; ++g)
        if (const int i = lane + g * warp_size; i < head_dim) {
          d_values[r][g] += share * d_outs[query * row_stride + i];
          d_keys[r][g] += slope * queries[query * row_stride + i];
        }
    }
  }
}

template <class T, int G>
__global__ void __launch_bounds__(attention_threads) key_tile_gradients(AttentionShape shape, Inputs<T> in, T* d_k, T* d_v) {
  extern __shared__ float shared[];
  const int head_dim = static_cast<int>(shape.head_dim), row_stride = padded(head_dim);
  float *const keys = shared, *const values = keys + tile * row_stride;
  float *const queries = values + tile * row_stride, *const d_outs = queries + tile * row_stride;
  const std::int64_t tiles = (shape.key_length + tile - 1) / tile, kv_head = blockIdx.x / tiles % shape.kv_heads,
                     b = blockIdx.x / tiles / shape.kv_heads;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) % tiles * tile, group = shape.heads / shape.kv_heads;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, own = static_cast<int>(threadIdx.x) / warp_size * rows_of_warp;
  const std::int64_t kv = b * shape.key_batch_stride + kv_head * shape.head_dim;
  load_tile(keys, in.k + kv, shape.key_stride, first, shape.key_length, head_dim);
  load_tile(values, in.v + kv, shape.key_stride, first, shape.key_length, head_dim);

  const Visible sight{shape, in.document_begin};
  float d_keys[rows_of_warp][G] = {}, d_values[rows_of_warp][G] = {};
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (std::int64_t first_query = 0; first_query < shape.query_length; first_query += tile) {
      const std::int64_t query = first_query + lane;
      const Range visible = query < shape.query_length ? sight.of(b, query) : Range{0, 0};
      if (!__syncthreads_or(visible.begin < first + tile && visible.end > first)) continue;  // also: the last tile has been used
      load_tile(queries, in.q + b * shape.query_length * shape.query_stride + head * shape.head_dim, shape.query_stride, first_query,
                shape.query_length, head_dim);
      load_tile(d_outs, in.d_out + b * shape.query_length * shape.out_stride + head * shape.head_dim, shape.out_stride, first_query,
                shape.query_length, head_dim);
      __syncthreads();
      const std::int64_t row = (b * shape.heads + head) * shape.query_length + min(query, shape.query_length - 1);
      add_queries<G>(d_keys, d_values, keys + own * row_stride, values + own * row_stride, queries, d_outs, visible, in.lse[row],
                     in.delta[row], first + own, shape.scale, head_dim);
    }

  for (int r = 0; r < rows_of_warp && first + own + r < shape.key_length; ++r)
    for (int g = 0; g < G; ++g)
      if (const int i = lane + g * warp_size; i < head_dim) {
        const std::int64_t at = kv + (first + own + r) * shape.key_stride + i;
        d_k[at] = rounded<T>(shape.scale * d_keys[r][g]);
        d_v[at] = rounded<T>(d_values[r][g]);
      }
}

template <class T, int G>
__global__ void __launch_bounds__(attention_threads) query_tile_gradients(AttentionShape shape, Inputs<T> in, T* d_q) {
  extern __shared__ float shared[];
  const int head_dim = static_cast<int>(shape.head_dim), row_stride = padded(head_dim);
  float *const keys = shared, *const values = keys + tile * row_stride;
  float *const queries = values + tile * row_stride, *const d_outs = queries + tile * row_stride;
  const std::int64_t tiles = (shape.query_length + tile - 1) / tile, head = blockIdx.x / tiles % shape.heads,
                     b = blockIdx.x / tiles / shape.heads;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) % tiles * tile;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, own = static_cast<int>(threadIdx.x) / warp_size * rows_of_warp;
  const std::int64_t kv = b * shape.key_batch_stride + head / (shape.heads / shape.kv_heads) * shape.head_dim;
  const std::int64_t query_at = b * shape.query_length * shape.query_stride + head * shape.head_dim;
  load_tile(queries, in.q + query_at, shape.query_stride, first, shape.query_length, head_dim);
  load_tile(d_outs, in.d_out + b * shape.query_length * shape.out_stride + head * shape.head_dim, shape.out_stride, first,
            shape.query_length, head_dim);

  const Visible sight{shape, in.document_begin};
  float d_queries[rows_of_warp][G] = {}, lse[rows_of_warp] = {}, delta[rows_of_warp] = {};
  Range visible[rows_of_warp];
  for (int r = 0; r < rows_of_warp; ++r) {
    const std::int64_t query = first + own + r;
    visible[r] = query < shape.query_length ? sight.of(b, query) : Range{0, 0};
    if (query >= shape.query_length) continue;
    lse[r] = in.lse[(b * shape.heads + head) * shape.query_length + query];
    delta[r] = in.delta[(b * shape.heads + head) * shape.query_length + query];
  }
  const std::int64_t keys_end = sight.of(b, min(first + tile, shape.query_length) - 1).end;
  for (std::int64_t first_key = 0; first_key < keys_end; first_key += tile) {
    bool wanted = false;
    for (const Range& range : visible) wanted = wanted || (range.begin < first_key + tile && range.end > first_key);
    if (!__syncthreads_or(wanted)) continue;
    load_tile(keys, in.k + kv, shape.key_stride, first_key, shape.key_length, head_dim);
    load_tile(values, in.v + kv, shape.key_stride, first_key, shape.key_length, head_dim);
    __syncthreads();
    for (int r = 0; r < rows_of_warp; ++r) {
      const bool seen = first_key + lane >= visible[r].begin && first_key + lane < visible[r].end;
      float d_score = 0;
      if (seen) {
        const float p = expf(shape.scale * dot(queries + (own + r) * row_stride, keys + lane * row_stride, head_dim) - lse[r]);
        d_score = p * (dot(d_outs + (own + r) * row_stride, values + lane * row_stride, head_dim) - delta[r]);
      }
      for (unsigned left = gpu_ballot(seen); left != 0; left &= left - 1) {
        const int key = __ffs(static_cast<int>(left)) - 1;
        const float slope = gpu_shuffle(d_score, key);
        for (int g = 0; g < G; ++g)
          if (lane + g * warp_size < head_dim) d_queries[r][g] += slope * keys[key * row_stride + lane + g * warp_size];
      }
    }
  }

  for (int r = 0; r < rows_of_warp && first + own + r < shape.query_length; ++r)
    for (int g = 0; g < G; ++g)
      if (const int i = lane + g * warp_size; i < head_dim)
        d_q[query_at + (first + own + r) * shape.query_stride + i] = rounded<T>(shape.scale * d_queries[r][g]);
}

template <class T>
void launch(gpuStream_t stream, const AttentionShape& shape, const Inputs<T>& in, T* d_q, T* d_k, T* d_v) {
  const std::int64_t query_tiles = (shape.query_length + tile - 1) / tile, key_tiles = (shape.key_length + tile - 1) / tile;
  const std::size_t bytes = 4 * tile_floats(shape.head_dim) * sizeof(float);
  for_groups(shape.head_dim, [&](auto groups) {
    constexpr auto by_key = &key_tile_gradients<T, decltype(groups)::value>;
    constexpr auto by_query = &query_tile_gradients<T, decltype(groups)::value>;
    gpu_check(gpuAllowSharedMemory(by_key, static_cast<int>(bytes)), "attention's shared memory");
    gpu_check(gpuAllowSharedMemory(by_query, static_cast<int>(bytes)), "attention's shared memory");
    if (const std::int64_t blocks = key_tiles * shape.batch * shape.kv_heads; blocks > 0)
      by_key<<<blocks_for(blocks, 1), attention_threads, bytes, stream>>>(shape, in, d_k, d_v);
    if (const std::int64_t blocks = query_tiles * shape.batch * shape.heads; blocks > 0)
      by_query<<<blocks_for(blocks, 1), attention_threads, bytes, stream>>>(shape, in, d_q);
  });
}

}  // namespace

std::size_t attention_backward_workspace(Stream& stream, const AttentionShape& shape, DType dtype, bool documents) {
  const std::size_t row_sums = static_cast<std::size_t>(shape.batch * shape.heads * shape.query_length) * sizeof(float);
  return std::max(row_sums, attention_library_workspace(stream, shape, dtype, documents, AttentionPass::backward).value_or(0));
}

void attention_backward(Stream& stream, const AttentionShape& given, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
                        const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                        const Tensor& document_begin, void* workspace) {
  if (attention_library_workspace(stream, given, q.dtype(), document_begin.defined(), AttentionPass::backward) &&
      attention_library_run(stream, given, AttentionPass::backward, {out, lse, q, k, v, d_out, d_q, d_k, d_v}, workspace))
    return;
  const AttentionShape shape = checked(given, document_begin);
  auto* delta = static_cast<float*>(workspace);
  const gpuStream_t native = native_stream(stream);
  for_element_type(q.dtype(), "attention", [&](auto zero) {
    using T = decltype(zero);
    if (const std::int64_t rows = shape.batch * shape.heads * shape.query_length; rows > 0)
      row_products<T><<<blocks_for(rows, warps), attention_threads, 0, native>>>(shape, delta, d_out.as<T>(), out.as<T>());
    check_launch("attention backward");
    const Inputs<T> in{d_out.as<T>(), q.as<T>(), k.as<T>(), v.as<T>(), out.as<T>(), lse.as<float>(), delta, documents_of(document_begin)};
    launch<T>(native, shape, in, d_q.as<T>(), d_k.as<T>(), d_v.as<T>());
  });
  check_launch("attention backward");
}

}  // namespace baleen::ops::gpu
