// RMSNorm and LayerNorm of rows, with the residual addition before them. A block has one row and keeps it in registers between its passes.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/gpu/column_sums.cuh"
#include "ops/gpu/halves.cuh"

namespace baleen::ops::gpu {

// x [rows, C]; delta and residual are both null or both there; mean and bias belong to LayerNorm.
template <class T>
struct NormForward {
  std::int64_t columns;
  T *out, *residual;
  float *mean, *rstd;
  const T *x, *delta, *weight, *bias;
  float eps;
};

// The most threads a block may have whose threads hold P packs of several arrays each: a multiprocessor has 65536 registers.
template <int P, bool Backward>
inline constexpr int norm_threads = P <= 4 && !Backward ? 1024 : 512;

inline constexpr int norm_row_warps = 4;   // rows that a block of the backward pass has where a warp holds one
inline constexpr int norm_row_arrays = 3;  // that the backward pass reads: d_out, x, d_residual

// P packs of W elements a thread.
template <class T, int W, int P, bool Centred>
__global__ void __launch_bounds__((norm_threads<P, false>)) norm_forward_row(NormForward<T> to) {
  const std::int64_t at = blockIdx.x * to.columns;
  const int first = static_cast<int>(threadIdx.x) * W, stride = static_cast<int>(blockDim.x) * W, columns = static_cast<int>(to.columns);
  Pack<T, W> values[P];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) values[p] = load<T, W>(to.x + at + i);
  float sum = 0, squares = 0;
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      float x[W];
      unpack(x, values[p]);
      if (to.delta != nullptr) {
        float added[W];
        unpack(added, load<T, W>(to.delta + at + i));
        for (int j = 0; j < W; ++j) added[j] += x[j];
        values[p] = rounded_pack<T>(added);
        store(to.residual + at + i, values[p]);
        unpack(x, values[p]);
      }
      for (int j = 0; j < W; ++j) Centred ? sum += x[j] : squares += x[j] * x[j];
    }
  float mean = 0;
  if constexpr (Centred) {  // the variance in a second pass: no difference of large numbers
    mean = row_reduce<Sum>(sum, 0.0f) / static_cast<float>(columns);
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (first + p * stride < columns) {
        float x[W];
        unpack(x, values[p]);
        for (int j = 0; j < W; ++j) squares += (x[j] - mean) * (x[j] - mean);
      }
  }
  const float scale = 1.0f / sqrtf(row_reduce<Sum>(squares, 0.0f) / static_cast<float>(columns) + to.eps);
  if (threadIdx.x == 0) {
    to.rstd[blockIdx.x] = scale;
    if constexpr (Centred) to.mean[blockIdx.x] = mean;
  }
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      float x[W], w[W], biases[W] = {};
      unpack(x, values[p]);
      unpack(w, load<T, W>(to.weight + i));
      if constexpr (Centred) unpack(biases, load<T, W>(to.bias + i));
      for (int j = 0; j < W; ++j) x[j] = (x[j] - mean) * scale * w[j] + biases[j];
      store(to.out + at + i, rounded_pack<T>(x));
    }
}

// d_x [rows, C]; d_residual: or null. partial: or null; of a pass that sums the weight's gradient too, [sums, blocks, C]: each block's sums
// for the weight and, of LayerNorm, for the bias.
template <class T>
struct NormBackward {
  std::int64_t rows, columns;
  T* d_x;
  const T *d_out, *d_residual, *x;
  const float *mean, *rstd;
  const T* weight;
  float* partial;
};

// Sums over a row, which lies in a warp, of which a block has several, or in a whole block; in every thread. Rows take turns with `parity`:
// who is done with one may write the next one's sums while others still read.
template <bool WarpRows, int K>
__device__ void sum_over_row(float (&values)[K], int parity) {
  __shared__ float partial[2][K][WarpRows ? 1 : warp_size];
  for (float& value : values) value = warp_reduce<Sum>(value);
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  if (WarpRows || warps == 1) return;
  if (threadIdx.x % warp_size == 0)
    for (int k = 0; k < K; ++k) partial[parity][k][threadIdx.x / warp_size] = values[k];
  __syncthreads();
  for (int k = 0; k < K; ++k) {
    values[k] = partial[parity][k][0];
#pragma unroll 1
    for (int warp = 1; warp < warps; ++warp) values[k] += partial[parity][k][warp];
  }
}

// The sums of a block's warps, of W · P columns each, into one row of `partial`.
template <int W, int P, bool WarpRows>
__device__ void store_block_sums(float* partial, const float (&sums)[P][W], int first, int stride, int columns) {
  __shared__ float shared[WarpRows ? norm_row_warps : 1][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size, warp = static_cast<int>(threadIdx.x) / warp_size;
#pragma unroll
  for (int p = 0; p < P; ++p)
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const int column = first + p * stride + j;
      float sum = sums[p][j];
      if constexpr (WarpRows) {
        __syncthreads();
        shared[warp][lane] = sum;
        __syncthreads();
        if (warp != 0) continue;
        for (int other = 1; other < norm_row_warps; ++other) sum += shared[other][lane];
      }
      if (column < columns) partial[column] = sum;
    }
}

// What a thread of the backward pass has of one row, in registers. Staged: in shared memory, where the next row's is on its way meanwhile;
// a thread reads what it copied itself, so that nobody waits for others.
template <class T, int W, int P, bool Staged>
class BackwardRow {
 public:
  enum Array { d_out, x, d_residual };

  __device__ BackwardRow(const NormBackward<T>& from, int first, int stride) : from_(from), first_(first), stride_(stride) {}
  // Begins to bring a row; one behind the last: nothing.
  __device__ void begin(std::int64_t row, int stage) {
    if constexpr (Staged) {
      if (row < from_.rows)
        each_pack([&](int p, int i) {
          for_each_array([&](Array array, const T* values) { gpu_copy_16(slot(stage, array, p), values + row * from_.columns + i); });
        });
      gpu_end_group();
    }
  }
  // The row of the begin() before the last is what get() gives from here on.
  __device__ void use(std::int64_t row, int stage) {
    stage_ = stage;
    if constexpr (Staged)
      gpu_await_all_but_last_group();
    else
      each_pack([&](int p, int i) {
        for_each_array([&](Array array, const T* values) { packs_[array][p] = load<T, W>(values + row * from_.columns + i); });
      });
  }
  __device__ Pack<T, W> get(Array array, int p) const {
    if constexpr (Staged)
      return load<T, W>(slot(stage_, array, p));
    else
      return packs_[array][p];
  }
  // body(pack, column) for the packs of the thread.
  template <class Body>
  __device__ void each_pack(const Body& body) const {
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (const int i = first_ + p * stride_; i < static_cast<int>(from_.columns)) body(p, i);
  }

 private:
  template <class Body>
  __device__ void for_each_array(const Body& body) const {
    body(d_out, from_.d_out);
    body(x, from_.x);
    if (from_.d_residual != nullptr) body(d_residual, from_.d_residual);
  }
  __device__ T* slot(int stage, Array array, int p) const {
    extern __shared__ uint4 stages[];
    return reinterpret_cast<T*>(stages + ((stage * norm_row_arrays + array) * P + p) * static_cast<int>(blockDim.x) +
                                static_cast<int>(threadIdx.x));
  }
  const NormBackward<T>& from_;
  int first_, stride_, stage_ = 0;
  Pack<T, W> packs_[Staged ? 1 : norm_row_arrays][Staged ? 1 : P];
};

// With x̂ = (x - mean) · rstd and g = weight · d_out, the gradient of a row is rstd · (g - mean(g) - x̂ · mean(g · x̂)), without the
// means of RMSNorm; it is added to d_residual, if there. rstd is multiplied once a row where it can be. A block walks over rows; the
// weight's gradient is Σ d_out · x̂, the bias's Σ d_out.
template <class T, int W, int P, bool Centred, bool Weights, bool WarpRows, bool Staged>
__global__ void __launch_bounds__((WarpRows ? norm_row_warps * warp_size : norm_threads<P, true>)) norm_backward_rows(NormBackward<T> to) {
  const int threads_of_row = WarpRows ? warp_size : static_cast<int>(blockDim.x), rows_of_block = WarpRows ? norm_row_warps : 1;
  const int first = static_cast<int>(threadIdx.x) % threads_of_row * W, stride = threads_of_row * W, columns = static_cast<int>(to.columns);
  constexpr bool Kept = P <= 4 && !Centred;
  float d_weight[Weights ? P : 1][W] = {}, d_bias[Weights && Centred ? P : 1][W] = {};
  using Row = BackwardRow<T, W, P, Staged>;
  Row has(to, first, stride);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_of_block;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / threads_of_row;
  has.begin(row, 0);
  const float share = 1.0f / static_cast<float>(columns);
  float weights[Kept ? P : 1][W];  // of the thread's columns, where there is room for them
  if constexpr (Kept) has.each_pack([&](int p, int i) { unpack(weights[p], load<T, W>(to.weight + i)); });
  const auto weights_of = [&](int p, int i, float(&w)[W]) {
    if constexpr (Kept)
      for (int j = 0; j < W; ++j) w[j] = weights[p][j];
    else
      unpack(w, load<T, W>(to.weight + i));
  };
  for (int stage = 0; row < to.rows; row += step, stage ^= 1) {
    has.begin(row + step, stage ^ 1);
    const float scale = to.rstd[row], mean = Centred ? to.mean[row] : 0.0f;
    has.use(row, stage);
    float sums[Centred ? 2 : 1] = {};  // Σ weight · d_out · (x - mean), Σ weight · d_out
    has.each_pack([&](int p, int i) {
      float w[W], d[W], x[W];
      weights_of(p, i, w);
      unpack(d, has.get(Row::d_out, p));
      unpack(x, has.get(Row::x, p));
      for (int j = 0; j < W; ++j) {
        const float product = d[j] * (x[j] - mean);
        sums[0] += w[j] * product;
        if constexpr (Centred) sums[1] += w[j] * d[j];
        if constexpr (Weights) d_weight[p][j] += product * scale;
        if constexpr (Weights && Centred) d_bias[p][j] += d[j];
      }
    });
    sum_over_row<WarpRows>(sums, stage);
    const float along_x = -(scale * sums[0] * share) * scale * scale;
    const float shift = Centred ? scale * sums[Centred ? 1 : 0] * share : 0.0f;
    has.each_pack([&](int p, int i) {
      float w[W], d[W], x[W], result[W] = {};
      weights_of(p, i, w);
      unpack(d, has.get(Row::d_out, p));
      unpack(x, has.get(Row::x, p));
      if (to.d_residual != nullptr) unpack(result, has.get(Row::d_residual, p));
      for (int j = 0; j < W; ++j) result[j] += scale * (w[j] * d[j]) - shift + (x[j] - mean) * along_x;
      store(to.d_x + row * to.columns + i, rounded_pack<T>(result));
    });
  }
  if constexpr (Weights) {
    store_block_sums<W, P, WarpRows>(to.partial + blockIdx.x * to.columns, d_weight, first, stride, columns);
    if constexpr (Centred)
      store_block_sums<W, P, WarpRows>(to.partial + (gridDim.x + blockIdx.x) * to.columns, d_bias, first, stride, columns);
  }
}

// Calls body(P, threads): packs of W elements a thread and threads a block that hold a row of `columns`.
template <bool Backward, class Body>
void for_row(std::int64_t columns, int width, Body&& body) {
  const auto fits = [&](auto packs) {
    unsigned threads = warp_size;
    while (threads * decltype(packs)::value * width < columns) threads *= 2;
    if (threads > norm_threads<decltype(packs)::value, Backward>) return false;
    body(packs, threads);
    return true;
  };
  if (!fits(std::integral_constant<int, 4>{}) && !fits(std::integral_constant<int, 16>{}))
    throw Error(ExitCode::bad_config, "rows of " + std::to_string(columns) + " elements are too long for the GPU's norms",
                "model.hidden_size", "use device = \"cpu\"");
}

// Enough blocks for a whole GPU, few enough that their sums are quickly added. A function of the rows alone, so that sums have one order.
inline std::int64_t norm_backward_blocks(std::int64_t rows) {
  return std::clamp<std::int64_t>(rows / 8, 1, 1056);
}

// With Weights, `targets` (weight, bias) [C] get the sums too, through to.partial.
template <class T, bool Centred, bool Weights>
void norm_backward(gpuStream_t stream, const NormBackward<T>& to, const ColumnTargets<Centred ? 2 : 1>& targets) {
  const std::int64_t blocks = norm_backward_blocks(to.rows);
  for_width<T>(to.columns, {to.d_x, to.d_out, to.d_residual, to.x, to.weight}, [&](auto width) {
    constexpr int W = decltype(width)::value;
    for_row<true>(to.columns, W, [&](auto packs, unsigned threads) {
      constexpr int P = decltype(packs)::value;
      const auto launch = [&](auto warp_rows, unsigned block_threads) {
        constexpr bool WarpRows = decltype(warp_rows)::value;
        // Two stages, where several blocks still share a multiprocessor.
        constexpr unsigned most_bytes = 56 * 1024;
        const unsigned bytes = 2 * norm_row_arrays * P * block_threads * 16;
        if (sizeof(T) * W == 16 && bytes <= most_bytes) {
          constexpr auto kernel = &norm_backward_rows < T, W, P, Centred, Weights, WarpRows, sizeof(T) * W == 16 > ;
          gpu_check(gpuAllowSharedMemory(kernel, most_bytes), "a norm's shared memory");
          kernel<<<static_cast<unsigned>(blocks), block_threads, bytes, stream>>>(to);
        } else {
          norm_backward_rows<T, W, P, Centred, Weights, WarpRows, false><<<static_cast<unsigned>(blocks), block_threads, 0, stream>>>(to);
        }
      };
      if (threads == warp_size)
        launch(std::true_type{}, norm_row_warps * warp_size);
      else
        launch(std::false_type{}, threads);
    });
  });
  check_launch("a norm's gradient");
  if constexpr (Weights) add_partial_sums(stream, blocks, to.columns, targets, to.partial);
}

}  // namespace baleen::ops::gpu
