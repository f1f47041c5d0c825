// RMSNorm and LayerNorm of rows, with the residual addition before them. A block has one row and keeps it in registers between its passes.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/gpu/column_sums.cuh"

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
      if (to.delta != nullptr) {
        const Pack<T, W> added = load<T, W>(to.delta + at + i);
        for (int j = 0; j < W; ++j) values[p].at[j] = rounded<T>(as_float(values[p].at[j]) + as_float(added.at[j]));
        store(to.residual + at + i, values[p]);
      }
      for (int j = 0; j < W; ++j) {
        const float value = as_float(values[p].at[j]);
        Centred ? sum += value : squares += value * value;
      }
    }
  float mean = 0;
  if constexpr (Centred) {  // the variance in a second pass: no difference of large numbers
    mean = row_reduce<Sum>(sum, 0.0f) / static_cast<float>(columns);
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (first + p * stride < columns)
        for (int j = 0; j < W; ++j) squares += (as_float(values[p].at[j]) - mean) * (as_float(values[p].at[j]) - mean);
  }
  const float scale = 1.0f / sqrtf(row_reduce<Sum>(squares, 0.0f) / static_cast<float>(columns) + to.eps);
  if (threadIdx.x == 0) {
    to.rstd[blockIdx.x] = scale;
    if constexpr (Centred) to.mean[blockIdx.x] = mean;
  }
#pragma unroll
  for (int p = 0; p < P; ++p)
    if (const int i = first + p * stride; i < columns) {
      const Pack<T, W> weights = load<T, W>(to.weight + i);
      Pack<T, W> result, biases{};
      if constexpr (Centred) biases = load<T, W>(to.bias + i);
      for (int j = 0; j < W; ++j) {
        float value = (as_float(values[p].at[j]) - mean) * scale * as_float(weights.at[j]);
        if constexpr (Centred) value += as_float(biases.at[j]);
        result.at[j] = rounded<T>(value);
      }
      store(to.out + at + i, result);
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

// A row lies in a warp, of which a block has several, or in a whole block.
template <bool WarpRows>
__device__ float sum_of_row(float value) {
  if constexpr (WarpRows)
    return warp_reduce<Sum>(value);
  else
    return row_reduce<Sum>(value, 0.0f);
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
// means of RMSNorm; it is added to d_residual, if there. A block walks over rows; the weight's gradient is Σ d_out · x̂, the bias's Σ d_out.
template <class T, int W, int P, bool Centred, bool Weights, bool WarpRows, bool Staged>
__global__ void __launch_bounds__((WarpRows ? norm_row_warps * warp_size : norm_threads<P, true>)) norm_backward_rows(NormBackward<T> to) {
  const int threads_of_row = WarpRows ? warp_size : static_cast<int>(blockDim.x), rows_of_block = WarpRows ? norm_row_warps : 1;
  const int first = static_cast<int>(threadIdx.x) % threads_of_row * W, stride = threads_of_row * W, columns = static_cast<int>(to.columns);
  float d_weight[Weights ? P : 1][W] = {}, d_bias[Weights && Centred ? P : 1][W] = {};
  using Row = BackwardRow<T, W, P, Staged>;
  Row has(to, first, stride);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_of_block;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * rows_of_block + threadIdx.x / threads_of_row;
  has.begin(row, 0);
  for (int stage = 0; row < to.rows; row += step, stage ^= 1) {
    has.begin(row + step, stage ^ 1);
    const float scale = to.rstd[row], mean = Centred ? to.mean[row] : 0.0f;
    has.use(row, stage);
    float sum = 0, products = 0;
    has.each_pack([&](int p, int i) {
      const Pack<T, W> weights = load<T, W>(to.weight + i), d = has.get(Row::d_out, p), x = has.get(Row::x, p);
      for (int j = 0; j < W; ++j) {
        const float gradient = as_float(d.at[j]), g = as_float(weights.at[j]) * gradient;
        const float unit = (as_float(x.at[j]) - mean) * scale;
        products += g * unit;
        if constexpr (Centred) sum += g;
        if constexpr (Weights) d_weight[p][j] += gradient * unit;
        if constexpr (Weights && Centred) d_bias[p][j] += gradient;
      }
    });
    const float along_x = -sum_of_row<WarpRows>(products) / static_cast<float>(columns);
    const float mean_g = Centred ? sum_of_row<WarpRows>(sum) / static_cast<float>(columns) : 0.0f;
    has.each_pack([&](int p, int i) {
      const Pack<T, W> weights = load<T, W>(to.weight + i), d = has.get(Row::d_out, p), x = has.get(Row::x, p);
      Pack<T, W> result{};
      if (to.d_residual != nullptr) result = has.get(Row::d_residual, p);
      for (int j = 0; j < W; ++j) {
        const float g = as_float(weights.at[j]) * as_float(d.at[j]), unit = (as_float(x.at[j]) - mean) * scale;
        const float before = as_float(result.at[j]);
        result.at[j] = rounded<T>(before + scale * (g - mean_g + unit * along_x));
      }
      store(to.d_x + row * to.columns + i, result);
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
