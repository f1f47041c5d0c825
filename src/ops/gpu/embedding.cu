#include "ops/embedding.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// A block copies one token's row.
template <class T, int W>
__global__ void copy_row(std::int64_t columns, std::int64_t vocabulary, T* out, const std::int32_t* ids, const T* table) {
  const std::int64_t token = blockIdx.x, id = ids[token];
  const bool known = id >= 0 && id < vocabulary;
  Pack<T, W> nothing;
  for (int j = 0; j < W; ++j) nothing.at[j] = rounded<T>(not_a_number());
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W)
    store(out + token * columns + i, known ? load<T, W>(table + id * columns + i) : nothing);
}

// The block of an id's first token adds the rows of all its tokens, in their order; a thread has one column. No two blocks write one row.
template <class T>
__global__ void add_rows_of_id(std::int64_t tokens, std::int64_t columns, std::int64_t vocabulary, float* d_table, const T* d_out,
                               const std::int32_t* ids) {
  __shared__ unsigned found[threads / warp_size];
  const std::int64_t token = blockIdx.x, id = ids[token], column = static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x;
  if (id < 0 || id >= vocabulary) return;
  for (std::int64_t begin = 0; begin < token; begin += threads) {
    const std::int64_t other = begin + threadIdx.x;
    if (__syncthreads_or(other < token && ids[other] == id)) return;
  }
  float sum = column < columns ? d_table[id * columns + column] : 0.0f;
  for (std::int64_t begin = token; begin < tokens; begin += threads) {
    const std::int64_t other = begin + threadIdx.x;
    const unsigned matches = __ballot_sync(full_warp, other < tokens && ids[other] == id);
    if (threadIdx.x % warp_size == 0) found[threadIdx.x / warp_size] = matches;
    __syncthreads();
    for (int warp = 0; warp < threads / warp_size; ++warp)
      for (unsigned left = found[warp]; left != 0; left &= left - 1)
        if (column < columns) sum += as_float(d_out[(begin + warp * warp_size + __ffs(static_cast<int>(left)) - 1) * columns + column]);
    __syncthreads();
  }
  if (column < columns) d_table[id * columns + column] = sum;
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& out, const Tensor& ids, const Tensor& table) {
  const std::int64_t tokens = ids.elements();
  BALEEN_CHECK(table.dims() == 2 && out.elements() == tokens * table.size(1) && out.dtype() == table.dtype(), out.elements(), tokens);
  if (out.elements() == 0) return;
  for_element_type(out.dtype(), "embedding", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(table.size(1), {out.data(), table.data()}, [&](auto width) {
      copy_row<T, decltype(width)::value><<<blocks_for(tokens, 1), threads, 0, native_stream(stream)>>>(
          table.size(1), table.size(0), out.as<T>(), ids.as<std::int32_t>(), table.as<T>());
    });
  });
  check_launch("embedding");
}

void embedding_backward(Stream& stream, const Tensor& d_table, const Tensor& d_out, const Tensor& ids) {
  const std::int64_t tokens = ids.elements(), columns = d_table.size(1);
  BALEEN_CHECK(d_table.dims() == 2 && d_out.elements() == tokens * columns, d_out.elements(), tokens, columns);
  if (d_out.elements() == 0) return;
  for_element_type(d_out.dtype(), "embedding gradient", [&](auto zero) {
    using T = decltype(zero);
    add_rows_of_id<T><<<dim3(blocks_for(tokens, 1), blocks_for(columns, threads)), threads, 0, native_stream(stream)>>>(
        tokens, columns, d_table.size(0), d_table.as<float>(), d_out.as<T>(), ids.as<std::int32_t>());
  });
  check_launch("embedding gradient");
}

}  // namespace baleen::ops::gpu
