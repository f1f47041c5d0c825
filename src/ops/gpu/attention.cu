// The forward pass: the tiles of keys that a tile of queries sees pass by once, with a running maximum and sum for each query.
#include "ops/gpu/attention_library.h"
#include "ops/gpu/attention_tiles.cuh"

namespace baleen::ops::gpu {
namespace {

// The running state of a warp's queries.
template <int G>
struct Sums {
  float out[rows_of_warp][G];  // Σ probability · value, a lane's columns
  float greatest[rows_of_warp], total[rows_of_warp];
};

// A tile of keys passes: `keys` and `values` [32, padded D]; a lane scores one key for each of the warp's queries.
template <int G>
__device__ void add_tile(Sums<G>& sums, const float* queries, const float* keys, const float* values, const Range* visible,
                         std::int64_t first_key, float scale, int head_dim) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size, row_stride = padded(head_dim);
  for (int r = 0; r < rows_of_warp; ++r) {
    // Keys of this tile that query r sees, counted from the tile's first.
    const int begin = static_cast<int>(max(visible[r].begin - first_key, std::int64_t{0}));
    const int end = static_cast<int>(min(visible[r].end - first_key, std::int64_t{tile}));
    if (begin >= end) continue;
    const bool seen = lane >= begin && lane < end;
    const float score = seen ? scale * dot(queries + r * row_stride, keys + lane * row_stride, head_dim) : -INFINITY;
    const float greatest = fmaxf(sums.greatest[r], warp_reduce<Greatest>(score));
    // All that was seen may be -infinity: any finite reference will do.
    const float reference = greatest == -INFINITY ? 0.0f : greatest;
    const float p = seen ? expf(score - reference) : 0.0f, factor = expf(sums.greatest[r] - reference);
    sums.greatest[r] = greatest;
    sums.total[r] = sums.total[r] * factor + warp_reduce<Sum>(p);
    for (int g = 0; g < G; ++g) sums.out[r][g] *= factor;
    for (int key = begin; key < end; ++key) {
      const float share = gpu_shuffle(p, key);
      for (int g = 0; g < G; ++g)
        if (lane + g * warp_size < head_dim) sums.out[r][g] += share * values[key * row_stride + lane + g * warp_size];
    }
  }
}

template <class T, int G>
__global__ void __launch_bounds__(attention_threads)
    forward_tile(AttentionShape shape, T* out, float* lse, const T* q, const T* k, const T* v, const std::int32_t* document_begin) {
  extern __shared__ float shared[];
  const int head_dim = static_cast<int>(shape.head_dim), row_stride = padded(head_dim);
  float *const queries = shared, *const keys = queries + tile * row_stride, *const values = keys + tile * row_stride;
  const std::int64_t tiles = (shape.query_length + tile - 1) / tile, head = blockIdx.x / tiles % shape.heads,
                     b = blockIdx.x / tiles / shape.heads;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) % tiles * tile;
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
  const std::int64_t kv = b * shape.key_batch_stride + head / (shape.heads / shape.kv_heads) * shape.head_dim;
  load_tile(queries, q + b * shape.query_length * shape.query_stride + head * shape.head_dim, shape.query_stride, first, shape.query_length,
            head_dim);

  const Visible sight{shape, document_begin};
  Range visible[rows_of_warp];
  Sums<G> sums{};
  for (int r = 0; r < rows_of_warp; ++r) {
    const std::int64_t query = first + warp * rows_of_warp + r;
    visible[r] = query < shape.query_length ? sight.of(b, query) : Range{0, 0};
    sums.greatest[r] = -INFINITY;
  }
  const std::int64_t keys_end = sight.of(b, min(first + tile, shape.query_length) - 1).end;  // the last query sees furthest
  for (std::int64_t first_key = 0; first_key < keys_end; first_key += tile) {
    bool wanted = false;
    for (const Range& range : visible) wanted = wanted || (range.begin < first_key + tile && range.end > first_key);
    if (!__syncthreads_or(wanted)) continue;  // also: the last tile has been used
    load_tile(keys, k + kv, shape.key_stride, first_key, shape.key_length, head_dim);
    load_tile(values, v + kv, shape.key_stride, first_key, shape.key_length, head_dim);
    __syncthreads();
    add_tile<G>(sums, queries + warp * rows_of_warp * row_stride, keys, values, visible, first_key, shape.scale, head_dim);
  }

  for (int r = 0; r < rows_of_warp; ++r) {
    const std::int64_t query = first + warp * rows_of_warp + r;
    if (query >= shape.query_length) break;
    const float total = sums.total[r], inverse = total == 0 ? 0.0f : 1.0f / total;
    T* const to = out + (b * shape.query_length + query) * shape.out_stride + head * shape.head_dim;
    for (int g = 0; g < G; ++g)
      if (lane + g * warp_size < head_dim) to[lane + g * warp_size] = rounded<T>(sums.out[r][g] * inverse);
    if (lane == 0) lse[(b * shape.heads + head) * shape.query_length + query] = total == 0 ? -INFINITY : sums.greatest[r] + logf(total);
  }
}

}  // namespace

AttentionShape checked(AttentionShape shape, const Tensor& document_begin) {
  BALEEN_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, shape.heads, shape.kv_heads);
  BALEEN_CHECK(shape.head_dim > 0 && shape.query_stride >= shape.head_dim && shape.key_stride >= shape.head_dim &&
                   shape.out_stride >= shape.head_dim,
               shape.head_dim, shape.query_stride, shape.key_stride, shape.out_stride);
  BALEEN_CHECK(!document_begin.defined() || document_begin.elements() == shape.batch * shape.query_length, document_begin.elements());
  if (shape.head_dim > most_head_dim)
    throw Error(ExitCode::bad_config, "attention heads of width " + std::to_string(shape.head_dim) + " are too wide for the GPU",
                "model.head_dim", "use heads of at most " + std::to_string(most_head_dim));
  if (shape.key_batch_stride == 0) shape.key_batch_stride = shape.key_length * shape.key_stride;
  return shape;
}

std::size_t attention_forward_workspace(Stream& stream, const AttentionShape& shape, DType dtype, bool documents) {
  return attention_library_workspace(stream, shape, dtype, documents, AttentionPass::forward).value_or(0);
}

void attention_forward(Stream& stream, const AttentionShape& given, const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                       const Tensor& v, const Tensor& document_begin, void* workspace) {
  if (attention_library_workspace(stream, given, q.dtype(), document_begin.defined(), AttentionPass::forward) &&
      attention_library_run(stream, given, AttentionPass::forward, {out, lse, q, k, v, {}, {}, {}, {}}, workspace))
    return;
  const AttentionShape shape = checked(given, document_begin);
  const std::int64_t blocks = (shape.query_length + tile - 1) / tile * shape.batch * shape.heads;
  if (blocks == 0) return;
  const gpuStream_t native = native_stream(stream);
  const std::size_t bytes = 3 * tile_floats(shape.head_dim) * sizeof(float);
  for_element_type(q.dtype(), "attention", [&](auto zero) {
    using T = decltype(zero);
    for_groups(shape.head_dim, [&](auto groups) {
      constexpr auto kernel = &forward_tile<T, decltype(groups)::value>;
      gpu_check(gpuAllowSharedMemory(kernel, static_cast<int>(bytes)), "attention's shared memory");
      kernel<<<blocks_for(blocks, 1), attention_threads, bytes, native>>>(shape, out.as<T>(), lse.as<float>(), q.as<T>(), k.as<T>(),
                                                                          v.as<T>(), documents_of(document_begin));
    });
  });
  check_launch("attention");
}

}  // namespace baleen::ops::gpu
