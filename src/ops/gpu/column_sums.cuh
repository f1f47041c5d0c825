// Sums over the rows of a matrix for each column: gradients of norm weights and of biases. Rows are cut into chunks, a function of their
// number alone, whose sums a second kernel adds in order: no atomics, the same bits twice.
#pragma once

#include <algorithm>
#include <array>

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {

inline constexpr int column_threads = 256;

inline std::int64_t column_chunks(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 64, 1, 256);
}

// Bytes of workspace for `sums` sums of each column.
inline std::size_t column_sums_workspace(std::int64_t rows, std::int64_t columns, int sums) {
  return static_cast<std::size_t>(column_chunks(rows) * columns * sums) * sizeof(float);
}

// `terms(row, column, add)` calls add(k, j, value) for sum k of column `column` + j, j < W. A block has blockDim.x packs of W columns, each
// summed by blockDim.y threads over the rows of one chunk. partial [K, chunks, columns].
template <int W, int K, class Terms>
__global__ void __launch_bounds__(column_threads) sum_chunks(std::int64_t rows, std::int64_t columns, float* partial, Terms terms) {
  __shared__ float shared[K * W * column_threads];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * W, chunk = blockIdx.y;
  const std::int64_t begin = rows * chunk / gridDim.y, end = rows * (chunk + 1) / gridDim.y;
  float sums[K][W] = {};
  if (column < columns)
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += blockDim.y)
      terms(row, column, [&](int k, int j, float value) { sums[k][j] += value; });
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), width = static_cast<int>(blockDim.x);
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < W; ++j) shared[(k * W + j) * column_threads + thread] = sums[k][j];
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int k = 0; k < K; ++k)
    for (int j = 0; j < W; ++j) {
      float sum = 0;
      for (int lane = 0; lane < static_cast<int>(blockDim.y); ++lane) sum += shared[(k * W + j) * column_threads + lane * width + thread];
      partial[(k * gridDim.y + chunk) * columns + column + j] = sum;
    }
}

// Where K sums are added: gradients [columns], all fp32 or all bf16.
template <int K>
struct ColumnTargets {
  void* at[K];
  bool halves;

  __device__ void add(std::int64_t k, std::int64_t column, float sum) const {
    if (halves) {
      auto* const to = static_cast<BFloat16*>(at[k]) + column;
      *to = rounded<BFloat16>(as_float(*to) + sum);
    } else {
      static_cast<float*>(at[k])[column] += sum;
    }
  }
};
template <class... Tensors>
ColumnTargets<1 + sizeof...(Tensors)> column_targets(const Tensor& first, const Tensors&... others) {
  const DType dtype = first.dtype();
  if (dtype != DType::f32 && dtype != DType::bf16) refuse_dtype("sums of columns", dtype);
  for (const Tensor* const other : {&first, &others...})
    BALEEN_CHECK(other->dtype() == dtype, dtype_name(other->dtype()), dtype_name(dtype));
  return {{first.data(), others.data()...}, dtype == DType::bf16};
}

// A block adds the chunks of 8 columns of one sum, as many as one access to memory brings, with 128 threads a column: few columns still
// keep a whole GPU busy.
inline constexpr int chunk_columns = 8, chunk_threads = 1024;
template <int K>
__global__ void __launch_bounds__(chunk_threads)
    add_chunks(std::int64_t chunks, std::int64_t columns, ColumnTargets<K> targets, const float* partial) {
  constexpr int lanes = chunk_threads / chunk_columns, parts = lanes / warp_size;
  __shared__ float shared[chunk_columns][lanes + 1], sums[chunk_columns][parts];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / warp_size;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * chunk_columns, column = first + thread % chunk_columns, k = blockIdx.y;
  float sum = 0;
  if (column < columns)
#pragma unroll 8
    for (std::int64_t chunk = thread / chunk_columns; chunk < chunks; chunk += lanes)
      sum += partial[(k * chunks + chunk) * columns + column];
  shared[thread % chunk_columns][thread / chunk_columns] = sum;
  __syncthreads();
  sum = warp_reduce<Sum>(shared[warp / parts][warp % parts * warp_size + thread % warp_size]);  // `parts` warps a column
  if (thread % warp_size == 0) sums[warp / parts][warp % parts] = sum;
  __syncthreads();
  if (thread >= chunk_columns || first + thread >= columns) return;
  sum = sums[thread][0];
  for (int part = 1; part < parts; ++part) sum += sums[thread][part];
  targets.add(k, first + thread, sum);
}

// targets [K] of [columns] += the sums of partial [K, chunks, columns] over the chunks.
template <int K>
void add_partial_sums(gpuStream_t stream, std::int64_t chunks, std::int64_t columns, const ColumnTargets<K>& targets,
                      const float* partial) {
  add_chunks<K><<<dim3(blocks_for(columns, chunk_columns), K), chunk_threads, 0, stream>>>(chunks, columns, targets, partial);
  check_launch("sums of columns");
}

// targets [K] of [columns] += the sums. W divides columns.
template <int W, int K, class Terms>
void add_column_sums(gpuStream_t stream, std::int64_t rows, std::int64_t columns, const ColumnTargets<K>& targets, void* workspace,
                     const Terms& terms) {
  const std::int64_t chunks = column_chunks(rows), packs = columns / W;
  int width = 1;  // packs of columns a block has
  while (width < warp_size && width < packs) width *= 2;
  auto* partial = static_cast<float*>(workspace);
  sum_chunks<W, K>
      <<<dim3(blocks_for(packs, width), static_cast<unsigned>(chunks)),
         dim3(static_cast<unsigned>(width), static_cast<unsigned>(column_threads / width)), 0, stream>>>(rows, columns, partial, terms);
  check_launch("sums of columns");
  add_partial_sums(stream, chunks, columns, targets, partial);
}

}  // namespace baleen::ops::gpu
