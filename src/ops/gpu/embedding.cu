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
  for (int j = 0; j < W; ++j) nothing.at[j] = rounded<T>(id == absent_id ? 0.0f : not_a_number());
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W)
    store(out + token * columns + i, known ? load<T, W>(table + id * columns + i) : nothing);
}

// The gradient: tokens are cut into chunks, each sorted by (id, place). The block of an id's first token finds its runs in all chunks by
// halving, and adds their rows in the order of the tokens. No two blocks write one row of the table.
constexpr int chunk = 1024, sort_threads = chunk / 2, add_threads = 128;
constexpr std::uint64_t nowhere = ~std::uint64_t{0};  // an id outside the table, or no token

__device__ std::uint64_t id_of(std::uint64_t entry) {
  return entry >> 32;
}

// A bitonic network. sorted [chunks · 1024]: id in the upper half, index of the token in the lower.
__global__ void __launch_bounds__(sort_threads)
    sort_chunk(std::int64_t tokens, std::int64_t vocabulary, std::uint64_t* sorted, const std::int32_t* ids) {
  __shared__ std::uint64_t entries[chunk];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * chunk;
  for (int i = static_cast<int>(threadIdx.x); i < chunk; i += sort_threads) {
    const std::int64_t token = begin + i, id = token < tokens ? ids[token] : -1;
    entries[i] = id >= 0 && id < vocabulary ? static_cast<std::uint64_t>(id) << 32 | static_cast<std::uint64_t>(token) : nowhere;
  }
  for (int size = 2; size <= chunk; size *= 2)
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int thread = static_cast<int>(threadIdx.x), low = thread / distance * 2 * distance + thread % distance, high = low + distance;
      const bool ascending = (low & size) == 0;
      if ((entries[low] > entries[high]) == ascending) {
        const std::uint64_t other = entries[low];
        entries[low] = entries[high];
        entries[high] = other;
      }
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < chunk; i += sort_threads) sorted[begin + i] = entries[i];
}

// The first of a sorted chunk's entries that is not below `entry`.
__device__ int first_not_below(const std::uint64_t* entries, std::uint64_t entry) {
  int begin = 0, end = chunk;
  while (begin < end) {
    const int middle = (begin + end) / 2;
    entries[middle] < entry ? begin = middle + 1 : end = middle;
  }
  return begin;
}

template <class Gradient, class T, int W>
__global__ void __launch_bounds__(add_threads)
    add_rows_of_id(std::int64_t chunks, std::int64_t columns, Gradient* d_table, const T* d_out, const std::uint64_t* sorted) {
  __shared__ int begins[add_threads], ends[add_threads];
  constexpr int unrolled = 8;  // rows on their way at once
  const std::int64_t own = blockIdx.x / chunk, at = blockIdx.x;
  if (sorted[at] == nowhere || (at % chunk != 0 && id_of(sorted[at - 1]) == id_of(sorted[at]))) return;
  const std::uint64_t first = id_of(sorted[at]) << 32, next = first + (std::uint64_t{1} << 32);
  for (std::int64_t group = 0; group < own; group += add_threads) {
    const std::int64_t other = group + threadIdx.x;
    bool found = false;
    if (other < own) {
      const int place = first_not_below(sorted + other * chunk, first);
      found = place < chunk && sorted[other * chunk + place] < next;
    }
    if (__syncthreads_or(found)) return;  // an earlier chunk's block has this id
  }
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * add_threads + threadIdx.x) * W;
  Gradient* const to = d_table + static_cast<std::int64_t>(id_of(first)) * columns + column;
  float sums[W];
  if (column < columns)
    for (int j = 0; j < W; ++j) sums[j] = as_float(to[j]);
  for (std::int64_t group = own; group < chunks; group += add_threads) {
    const std::int64_t other = group + threadIdx.x;
    __syncthreads();
    if (other < chunks) {
      begins[threadIdx.x] = first_not_below(sorted + other * chunk, first);
      ends[threadIdx.x] = first_not_below(sorted + other * chunk, next);
    }
    __syncthreads();
    if (column >= columns) continue;
    for (std::int64_t c = group; c < min(group + add_threads, chunks); ++c) {
      const std::uint64_t* entries = sorted + c * chunk;
      int i = begins[c - group];
      const int end = ends[c - group];
      for (; i + unrolled <= end; i += unrolled) {
        Pack<T, W> rows[unrolled];
        for (int r = 0; r < unrolled; ++r) rows[r] = load<T, W>(d_out + (entries[i + r] & 0xffffffff) * columns + column);
        for (int r = 0; r < unrolled; ++r)
          for (int j = 0; j < W; ++j) sums[j] += as_float(rows[r].at[j]);
      }
      for (; i < end; ++i) {
        const Pack<T, W> row = load<T, W>(d_out + (entries[i] & 0xffffffff) * columns + column);
        for (int j = 0; j < W; ++j) sums[j] += as_float(row.at[j]);
      }
    }
  }
  if (column < columns)
    for (int j = 0; j < W; ++j) to[j] = rounded<Gradient>(sums[j]);
}

std::int64_t chunks_of(std::int64_t tokens) {
  return (tokens + chunk - 1) / chunk;
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

std::size_t embedding_backward_workspace(std::int64_t tokens) {
  return static_cast<std::size_t>(chunks_of(tokens) * chunk) * sizeof(std::uint64_t);
}

void embedding_backward(Stream& stream, const Tensor& d_table, const Tensor& d_out, const Tensor& ids, void* workspace) {
  const std::int64_t tokens = ids.elements(), columns = d_table.size(1), chunks = chunks_of(tokens);
  BALEEN_CHECK(d_table.dims() == 2 && d_out.elements() == tokens * columns, d_out.elements(), tokens, columns);
  BALEEN_CHECK(tokens <= 0xffffffff, tokens);
  if (d_out.elements() == 0) return;
  auto* sorted = static_cast<std::uint64_t*>(workspace);
  const gpuStream_t native = native_stream(stream);
  sort_chunk<<<blocks_for(chunks, 1), sort_threads, 0, native>>>(tokens, d_table.size(0), sorted, ids.as<std::int32_t>());
  check_launch("embedding gradient");
  const auto add = [&](auto gradient_zero, auto zero) {
    using Gradient = decltype(gradient_zero);
    using T = decltype(zero);
    for_width<T>(columns, {d_out.data(), d_table.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      add_rows_of_id<Gradient, T, W><<<dim3(blocks_for(chunks * chunk, 1), blocks_for(columns, add_threads * W)), add_threads, 0, native>>>(
          chunks, columns, d_table.as<Gradient>(), d_out.as<T>(), sorted);
    });
  };
  if (d_table.dtype() == DType::bf16 && d_out.dtype() == DType::bf16)
    add(BFloat16{}, BFloat16{});
  else
    for_element_type(d_out.dtype(), "embedding gradient", [&](auto zero) { add(float{}, zero); });
  check_launch("embedding gradient");
}

}  // namespace baleen::ops::gpu
