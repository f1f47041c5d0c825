#include "ops/rope.h"

#include "ops/gpu/column_sums.cuh"
#include "ops/gpu/halves.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// W consecutive angles of a table.
template <int W>
__device__ void load_angles(float (&to)[W], const float* from) {
  constexpr int wide = W < 4 ? W : 4;
#pragma unroll
  for (int j = 0; j < W; j += wide) {
    const Pack<float, wide> some = load<float, wide>(from + j);
    for (int i = 0; i < wide; ++i) to[j + i] = some.at[i];
  }
}

// A thread turns W pairs: elements i, … and i + half, … of one head of one token.
template <class T, int W>
__global__ void rotate_pairs(unsigned packs, unsigned heads, unsigned half, T* x, std::int64_t row_stride, const float* cosines,
                             const float* sines, const std::int32_t* positions, std::int64_t position_count, float sign) {
  const unsigned pack = blockIdx.x * threads + threadIdx.x;
  if (pack >= packs) return;
  const unsigned of_head = half / W, i = pack % of_head * W, row = pack / of_head, head = row % heads, token = row / heads;
  T* const first = x + token * row_stride + static_cast<std::int64_t>(head) * 2 * half + i;
  const std::int64_t position = positions[token];
  const bool known = position >= 0 && position < position_count;
  const std::int64_t angle = (known ? position : 0) * half + i;
  float a[W], b[W], c[W], s[W];
  unpack(a, load<T, W>(first));
  unpack(b, load<T, W>(first + half));
  load_angles(c, cosines + angle);
  load_angles(s, sines + angle);
  for (int j = 0; j < W; ++j) {
    const float left = known ? a[j] : not_a_number(), right = b[j];
    a[j] = left * c[j] - right * (sign * s[j]);
    b[j] = right * c[j] + left * (sign * s[j]);
  }
  store(first, rounded_pack<T>(a));
  store(first + half, rounded_pack<T>(b));
}

// What rotates back rows of d_y [rows, columns] in their first `rotated` heads of 2 · half columns, and sums the columns of all heads.
// partial [chunks, columns].
template <class T>
struct RotateBack {
  std::int64_t rows, columns;
  int half, rotated;
  T* d_y;
  const float *cosines, *sines;
  const std::int32_t* positions;
  std::int64_t position_count;
  float* partial;
};

// A block has blockDim.x times W pairs of columns, each summed by blockDim.y threads over the rows of one chunk, before they are rounded.
template <class T, int W>
__global__ void __launch_bounds__(column_threads, 4) rotate_back_and_sum(RotateBack<T> to) {
  __shared__ float shared[2 * W * column_threads];
  const int width = static_cast<int>(blockDim.x), of_head = to.half / W, pack = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int head = pack / of_head, i = pack % of_head * W, column = head * 2 * to.half + i;
  const std::int64_t begin = to.rows * blockIdx.y / gridDim.y, end = to.rows * (blockIdx.y + 1) / gridDim.y;
  float sums[2][W] = {};
  if (column < to.columns)
    for (std::int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
      T* const first = to.d_y + row * to.columns + column;
      float a[W], b[W];
      unpack(a, load<T, W>(first));
      unpack(b, load<T, W>(first + to.half));
      if (head < to.rotated) {
        const std::int64_t position = to.positions[row];
        const bool known = position >= 0 && position < to.position_count;
        const std::int64_t angle = (known ? position : 0) * to.half + i;
        constexpr int some = W < 4 ? W : 4;  // angles at once: registers decide how many blocks share a multiprocessor
        for (int from = 0; from < W; from += some) {
          const Pack<float, some> c = load<float, some>(to.cosines + angle + from), s = load<float, some>(to.sines + angle + from);
          for (int j = 0; j < some; ++j) {
            const float left = known ? a[from + j] : not_a_number(), right = b[from + j];
            a[from + j] = left * c.at[j] + right * s.at[j];
            b[from + j] = right * c.at[j] - left * s.at[j];
          }
        }
        store(first, rounded_pack<T>(a));
        store(first + to.half, rounded_pack<T>(b));
      }
      for (int j = 0; j < W; ++j) sums[0][j] += a[j], sums[1][j] += b[j];
    }
  const int thread = static_cast<int>(threadIdx.y) * width + static_cast<int>(threadIdx.x);
  for (int v = 0; v < 2 * W; ++v) shared[v * column_threads + thread] = sums[v / W][v % W];
  __syncthreads();
  for (int at = thread; at < 2 * W * width; at += column_threads) {
    const int v = at / width, other = static_cast<int>(blockIdx.x) * width + at % width;
    const int to_column = other / of_head * 2 * to.half + other % of_head * W + v / W * to.half + v % W;
    float sum = 0;
    for (int lane = at % width; lane < column_threads; lane += width) sum += shared[v * column_threads + lane];
    if (to_column < to.columns) to.partial[blockIdx.y * to.columns + to_column] = sum;
  }
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
    constexpr std::int64_t wide = 16 / sizeof(T);
    for_width<T>(row_stride % wide == 0 ? half : 1, {x.data(), cosines.data(), sines.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      BALEEN_CHECK(pairs / W < 0xffffffff, pairs);
      rotate_pairs<T, W><<<blocks_for(pairs / W, threads), threads, 0, native_stream(stream)>>>(
          static_cast<unsigned>(pairs / W), static_cast<unsigned>(heads), static_cast<unsigned>(half), x.as<T>(), row_stride,
          cosines.as<float>(), sines.as<float>(), positions.as<std::int32_t>(), cosines.size(0), inverse ? -1.0f : 1.0f);
    });
  });
  check_launch("RoPE");
}

std::size_t rope_backward_with_bias_workspace(std::int64_t rows, std::int64_t columns) {
  return column_sums_workspace(rows, columns, 1);
}

void rope_backward_with_bias(Stream& stream, const Tensor& d_y, std::int64_t rotated, const Tensor& cosines, const Tensor& sines,
                             const Tensor& positions, const Tensor& d_bias, void* workspace) {
  require_fp32("RoPE", {&cosines, &sines});
  const std::int64_t rows = d_y.size(0), columns = d_y.size(1), half = cosines.size(-1), chunks = column_chunks(rows);
  BALEEN_CHECK(columns % (2 * half) == 0 && rotated * 2 * half <= columns && d_bias.elements() == columns, columns, half, rotated,
               d_bias.elements());
  BALEEN_CHECK(sines.size(-1) == half && sines.size(0) == cosines.size(0) && positions.elements() == rows, sines.size(-1), half,
               positions.elements(), rows);
  if (d_y.elements() == 0) return;
  for_element_type(d_y.dtype(), "RoPE", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(half, {d_y.data(), cosines.data(), sines.data()}, [&](auto vector) {
      constexpr int W = decltype(vector)::value;
      const std::int64_t packs = columns / 2 / W;
      unsigned width = 1;
      while (width < warp_size && width < packs) width *= 2;
      const RotateBack<T> to{rows,
                             columns,
                             static_cast<int>(half),
                             static_cast<int>(rotated),
                             d_y.as<T>(),
                             cosines.as<float>(),
                             sines.as<float>(),
                             positions.as<std::int32_t>(),
                             cosines.size(0),
                             static_cast<float*>(workspace)};
      rotate_back_and_sum<T, W><<<dim3(blocks_for(packs, width), static_cast<unsigned>(chunks)), dim3(width, column_threads / width), 0,
                                  native_stream(stream)>>>(to);
    });
  });
  check_launch("RoPE");
  add_partial_sums(native_stream(stream), chunks, columns, column_targets(d_bias), static_cast<const float*>(workspace));
}

}  // namespace baleen::ops::gpu
