#include "ops/cross_entropy.h"

#include <algorithm>

#include "ops/gpu/kernel.cuh"
#include "ops/gpu/softmax_rows.cuh"

namespace baleen::ops::gpu {
namespace {

// 2ˣ for what is at most 0. bf16 logits have no more than 8 bits: the instruction's own accuracy is enough for them.
template <class T>
__device__ float power_of_two(float x) {
  if constexpr (std::is_same_v<T, float>)
    return exp2f(x);
  else
    return gpu_fast_exp2(x);
}

// The greatest logit seen, times log2(e), and Σ exp(logit - greatest), which one pass over a row keeps together.
struct SoftmaxSum {
  float greatest = -INFINITY, sum = 0;
};
template <class T>
__device__ SoftmaxSum combined(SoftmaxSum a, SoftmaxSum b) {
  const float greatest = fmaxf(a.greatest, b.greatest);
  if (greatest == -INFINITY) return {greatest, a.sum + b.sum};
  return {greatest, a.sum * power_of_two<T>(a.greatest - greatest) + b.sum * power_of_two<T>(b.greatest - greatest)};
}

template <class T, int W>
__device__ void add_pack(SoftmaxSum& seen, const Pack<T, W>& values) {
  float greatest = as_float(values.at[0]);
  for (int j = 1; j < W; ++j) greatest = fmaxf(greatest, as_float(values.at[j]));
  greatest *= log2_e;
  if (greatest > seen.greatest) {
    seen.sum *= power_of_two<T>(seen.greatest - greatest);
    seen.greatest = greatest;
  }
  const float reference = seen.greatest == -INFINITY ? 0.0f : seen.greatest;
  for (int j = 0; j < W; ++j) seen.sum += power_of_two<T>(as_float(values.at[j]) * log2_e - reference);
}

// Over the block, in every thread.
template <class T, int Threads>
__device__ SoftmaxSum block_sum(SoftmaxSum seen) {
  __shared__ float greatest[Threads / warp_size], sum[Threads / warp_size];
  const auto across_warp = [&] {
    for (int distance = warp_size / 2; distance > 0; distance /= 2)
      seen = combined<T>(seen, {gpu_shuffle_xor(seen.greatest, distance), gpu_shuffle_xor(seen.sum, distance)});
  };
  across_warp();
  if (threadIdx.x % warp_size == 0) greatest[threadIdx.x / warp_size] = seen.greatest, sum[threadIdx.x / warp_size] = seen.sum;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  seen = lane < Threads / warp_size ? SoftmaxSum{greatest[lane], sum[lane]} : SoftmaxSum{};
  across_warp();
  return seen;
}

// The columns from `valid` on are no logits.
template <class T, int W>
__device__ void mask(Pack<T, W>& values, std::int64_t begin, std::int64_t valid) {
  if (begin + W <= valid) return;
  for (int j = 0; j < W; ++j)
    if (begin + j >= valid) values.at[j] = rounded<T>(-INFINITY);
}

// A block has one row of logits [n, columns], the first `valid` of them, which becomes its gradient when gradient_scale is there. The first
// `kept` elements of the row stay in shared memory between the passes; the rest is read again, most of it from the GPU's cache.
template <class T, int W, int Threads>
__global__ void __launch_bounds__(Threads) softmax_row(std::int64_t columns, std::int64_t valid, std::int64_t kept, float* losses,
                                                       T* logits, const std::int32_t* targets, const float* gradient_scale) {
  extern __shared__ uint4 shared[];
  T* const copy = reinterpret_cast<T*>(shared);
  T* const row = logits + blockIdx.x * columns;
  const std::int32_t target = targets[blockIdx.x];
  if (target == ignore_index) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (gradient_scale == nullptr) return;
    Pack<T, W> zeros;
    for (int j = 0; j < W; ++j) zeros.at[j] = rounded<T>(0.0f);
    for (std::int64_t i = threadIdx.x * W; i < columns; i += Threads * W) store(row + i, zeros);
    return;
  }
  SoftmaxSum seen;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x * W; i < kept; i += Threads * W) {
    Pack<T, W> values = load<T, W>(row + i);
    mask(values, i, valid);
    store(copy + i, values);
    add_pack(seen, values);
  }
#pragma unroll 4
  for (std::int64_t i = kept + threadIdx.x * W; i < columns; i += Threads * W) {
    Pack<T, W> values = load<T, W>(row + i);
    mask(values, i, valid);
    add_pack(seen, values);
  }
  const SoftmaxSum all = block_sum<T, Threads>(seen);
  const float greatest = all.greatest, sum = all.sum;
  const bool known = target >= 0 && target < valid;
  if (threadIdx.x == 0)
    losses[blockIdx.x] =
        known ? static_cast<float>(log(static_cast<double>(sum)) + (static_cast<double>(greatest) / static_cast<double>(log2_e) -
                                                                    static_cast<double>(as_float(row[target]))))
              : not_a_number();
  if (gradient_scale == nullptr) return;
  const float scale = known ? *gradient_scale : not_a_number(), share = scale / sum, target_logit = known ? as_float(row[target]) : 0.0f;
  __syncthreads();  // the target's logit has been read
  const auto pass = [&](const T* from, std::int64_t begin, std::int64_t end) {
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x * W; i < end; i += Threads * W) {
      Pack<T, W> values = load<T, W>(from + i);
      mask(values, i, valid);
      for (int j = 0; j < W; ++j) values.at[j] = rounded<T>(share * power_of_two<T>(as_float(values.at[j]) * log2_e - greatest));
      store(row + i, values);
    }
  };
  pass(copy, 0, kept);
  pass(row, kept, columns);
  __syncthreads();
  if (known && threadIdx.x == 0) row[target] = rounded<T>(share * power_of_two<T>(target_logit * log2_e - greatest) - scale);
}

constexpr int loss_threads = 512;

__global__ void add_losses(std::int64_t rows, double* loss_sum, const float* losses) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += loss_threads) sum += losses[i];
  sum = block_reduce<Sum, loss_threads>(sum, 0.0);
  if (threadIdx.x == 0) *loss_sum += sum;
}

// A block a row, of any length and type.
void softmax_of_rows(gpuStream_t native, const Tensor& logits, const Tensor& targets, std::int64_t valid, float* losses,
                     const float* gradient_scale) {
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  for_element_type(logits.dtype(), "cross-entropy", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {logits.data()}, [&](auto width) {
      constexpr int W = decltype(width)::value;
      // Two blocks share a multiprocessor where both rows fit beside each other.
      constexpr std::int64_t one = 224 * 1024 / sizeof(T), two = 110 * 1024 / sizeof(T);
      const auto launch = [&](auto threads, std::int64_t room) {
        constexpr auto kernel = &softmax_row<T, W, decltype(threads)::value>;
        const std::int64_t kept = std::min(columns, room);
        const auto bytes = static_cast<std::size_t>((kept * static_cast<std::int64_t>(sizeof(T)) + 15) / 16 * 16);
        gpu_check(gpuAllowSharedMemory(kernel, static_cast<int>(bytes)), "cross-entropy's shared memory");
        kernel<<<blocks_for(rows, 1), decltype(threads)::value, bytes, native>>>(columns, valid, kept, losses, logits.as<T>(),
                                                                                 targets.as<std::int32_t>(), gradient_scale);
      };
      if (columns <= two)
        launch(std::integral_constant<int, 512>{}, two);
      else
        launch(std::integral_constant<int, 1024>{}, one);
    });
  });
}

// Gradients of bf16 rows of a length that streams through multiprocessors; false: they are others.
bool softmax_of_streamed_rows(Stream& stream, const Tensor& logits, const Tensor& targets, std::int64_t valid, float* losses,
                              const float* gradient_scale) {
  if (logits.dtype() != DType::bf16 || gradient_scale == nullptr) return false;
  const SoftmaxRows rows{.rows = logits.size(0),
                         .losses = losses,
                         .logits = logits.as<BFloat16>(),
                         .targets = targets.as<std::int32_t>(),
                         .gradient_scale = gradient_scale};
  const auto launched = [&](auto threads) { return launch_softmax_rows<decltype(threads)::value>(stream, rows, logits.size(1), valid); };
  return launched(std::integral_constant<int, 512>{}) || launched(std::integral_constant<int, 1024>{});
}

// gradient_scale: null for the loss alone.
void cross_entropy(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, const float* gradient_scale,
                   std::int64_t vocabulary, void* workspace) {
  BALEEN_CHECK(logits.dims() == 2 && targets.elements() == logits.size(0) && loss_sum.elements() == 1, logits.dims(), targets.elements());
  const std::int64_t rows = logits.size(0), columns = logits.size(1), valid = vocabulary == 0 ? columns : vocabulary;
  BALEEN_CHECK(valid <= columns, valid, columns);
  if (rows == 0) return;
  auto* losses = static_cast<float*>(workspace);
  const gpuStream_t native = native_stream(stream);
  if (!softmax_of_streamed_rows(stream, logits, targets, valid, losses, gradient_scale))
    softmax_of_rows(native, logits, targets, valid, losses, gradient_scale);
  check_launch("cross-entropy");
  add_losses<<<1, loss_threads, 0, native>>>(rows, loss_sum.as<double>(), losses);
  check_launch("cross-entropy");
}

}  // namespace

std::size_t cross_entropy_workspace(std::int64_t rows) {
  return static_cast<std::size_t>(rows) * sizeof(float);
}

void cross_entropy_forward(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, std::int64_t vocabulary,
                           void* workspace) {
  cross_entropy(stream, loss_sum, logits, targets, nullptr, vocabulary, workspace);
}

void cross_entropy_forward_backward(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                                    const Tensor& gradient_scale, std::int64_t vocabulary, void* workspace) {
  require_fp32("cross-entropy", {&gradient_scale});
  BALEEN_CHECK(gradient_scale.elements() == 1, gradient_scale.elements());
  cross_entropy(stream, loss_sum, logits, targets, gradient_scale.as<float>(), vocabulary, workspace);
}

}  // namespace baleen::ops::gpu
