#include "ops/cross_entropy.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 512;

// A block has one row of logits [n, V], which becomes its gradient when gradient_scale is there.
template <class T, int W>
__global__ void softmax_row(std::int64_t columns, float* losses, T* logits, const std::int32_t* targets, const float* gradient_scale) {
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
  float greatest = -INFINITY;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> values = load<T, W>(row + i);
    for (int j = 0; j < W; ++j) greatest = fmaxf(greatest, as_float(values.at[j]));
  }
  greatest = block_reduce<Greatest, threads>(greatest, -INFINITY);
  float sum = 0;
  for (std::int64_t i = threadIdx.x * W; i < columns; i += threads * W) {
    const Pack<T, W> values = load<T, W>(row + i);
    for (int j = 0; j < W; ++j) sum += expf(as_float(values.at[j]) - greatest);
  }
  sum = block_reduce<Sum, threads>(sum, 0.0f);
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
      float gradient = share * expf(as_float(values.at[j]) - greatest);
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
