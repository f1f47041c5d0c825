#include "ops/cross_entropy.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 1024;

// eˣ for x ≤ 0. bf16 logits have no more than 8 bits: the instruction's own accuracy is enough for them.
template <class T>
__device__ float exponential(float x) {
  if constexpr (std::is_same_v<T, float>)
    return expf(x);
  else
    return __expf(x);
}

// The greatest logit seen and Σ exp(logit - greatest), which one pass over a row keeps together.
struct SoftmaxSum {
  float greatest = -INFINITY, sum = 0;
};
template <class T>
__device__ SoftmaxSum combined(SoftmaxSum a, SoftmaxSum b) {
  const float greatest = fmaxf(a.greatest, b.greatest);
  if (greatest == -INFINITY) return {greatest, a.sum + b.sum};
  return {greatest, a.sum * exponential<T>(a.greatest - greatest) + b.sum * exponential<T>(b.greatest - greatest)};
}

template <class T, int W>
__device__ SoftmaxSum softmax_sum(const T* row, std::int64_t columns) {
  __shared__ SoftmaxSum partial[warp_size];
  SoftmaxSum seen;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> values = load<T, W>(row + i);
    float greatest = as_float(values.at[0]);
    for (int j = 1; j < W; ++j) greatest = fmaxf(greatest, as_float(values.at[j]));
    if (greatest > seen.greatest) {
      seen.sum *= exponential<T>(seen.greatest - greatest);
      seen.greatest = greatest;
    }
    const float reference = seen.greatest == -INFINITY ? 0.0f : seen.greatest;
    for (int j = 0; j < W; ++j) seen.sum += exponential<T>(as_float(values.at[j]) - reference);
  }
  const auto across_warp = [&] {
    for (int distance = warp_size / 2; distance > 0; distance /= 2)
      seen = combined<T>(seen, {__shfl_xor_sync(full_warp, seen.greatest, distance), __shfl_xor_sync(full_warp, seen.sum, distance)});
  };
  across_warp();
  if (threadIdx.x % warp_size == 0) partial[threadIdx.x / warp_size] = seen;
  __syncthreads();
  static_assert(threads == warp_size * warp_size);
  seen = partial[threadIdx.x % warp_size];
  across_warp();
  return seen;
}

// A block has one row of logits [n, V], which becomes its gradient when gradient_scale is there. The second pass finds most of the row in
// the GPU's cache.
template <class T, int W>
__global__ void __launch_bounds__(threads)
    softmax_row(std::int64_t columns, float* losses, T* logits, const std::int32_t* targets, const float* gradient_scale) {
  T* const row = logits + blockIdx.x * columns;
  const std::int32_t target = targets[blockIdx.x];
  if (target == ignore_index) {
    if (threadIdx.x == 0) losses[blockIdx.x] = 0;
    if (gradient_scale == nullptr) return;
    Pack<T, W> zeros;
    for (int j = 0; j < W; ++j) zeros.at[j] = rounded<T>(0.0f);
    for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) store(row + i, zeros);
    return;
  }
  const auto [greatest, sum] = softmax_sum<T, W>(row, columns);
  const bool known = target >= 0 && target < columns;
  if (threadIdx.x == 0)
    losses[blockIdx.x] = known ? static_cast<float>(log(static_cast<double>(sum)) + (static_cast<double>(greatest) - as_float(row[target])))
                               : not_a_number();
  if (gradient_scale == nullptr) return;
  __syncthreads();  // the target's logit has been read
  const float scale = known ? *gradient_scale : not_a_number(), share = scale / sum;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    Pack<T, W> values = load<T, W>(row + i);
    for (int j = 0; j < W; ++j) {
      float gradient = share * exponential<T>(as_float(values.at[j]) - greatest);
      if (i + j == target) gradient -= scale;
      values.at[j] = rounded<T>(gradient);
    }
    store(row + i, values);
  }
}

__global__ void add_losses(std::int64_t rows, double* loss_sum, const float* losses) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += threads) sum += losses[i];
  sum = block_reduce<Sum, threads>(sum, 0.0);
  if (threadIdx.x == 0) *loss_sum += sum;
}

// gradient_scale: null for the loss alone.
void cross_entropy(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, const float* gradient_scale,
                   void* workspace) {
  BALEEN_CHECK(logits.dims() == 2 && targets.elements() == logits.size(0) && loss_sum.elements() == 1, logits.dims(), targets.elements());
  const std::int64_t rows = logits.size(0), columns = logits.size(1);
  if (rows == 0) return;
  auto* losses = static_cast<float*>(workspace);
  const gpuStream_t native = native_stream(stream);
  for_element_type(logits.dtype(), "cross-entropy", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(columns, {logits.data()}, [&](auto width) {
      softmax_row<T, decltype(width)::value>
          <<<blocks_for(rows, 1), threads, 0, native>>>(columns, losses, logits.as<T>(), targets.as<std::int32_t>(), gradient_scale);
    });
  });
  check_launch("cross-entropy");
  add_losses<<<1, threads, 0, native>>>(rows, loss_sum.as<double>(), losses);
  check_launch("cross-entropy");
}

}  // namespace

std::size_t cross_entropy_workspace(std::int64_t rows) {
  return static_cast<std::size_t>(rows) * sizeof(float);
}

void cross_entropy_forward(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets, void* workspace) {
  cross_entropy(stream, loss_sum, logits, targets, nullptr, workspace);
}

void cross_entropy_forward_backward(Stream& stream, const Tensor& loss_sum, const Tensor& logits, const Tensor& targets,
                                    const Tensor& gradient_scale, void* workspace) {
  require_fp32("cross-entropy", {&gradient_scale});
  BALEEN_CHECK(gradient_scale.elements() == 1, gradient_scale.elements());
  cross_entropy(stream, loss_sum, logits, targets, gradient_scale.as<float>(), workspace);
}

}  // namespace baleen::ops::gpu
