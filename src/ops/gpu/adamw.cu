#include "ops/adamw.h"

#include <algorithm>

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

// scalars as adamw.h describes them: learning rate, the two bias corrections, the factor on the gradients.
template <int W>
__global__ void update_elements(std::int64_t count, float* weights, const float* gradients, float* exp_avg, float* exp_avg_sq,
                                const float* scalars, AdamWConstants constants) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W;
  if (i >= count) return;
  const float rate = scalars[adamw_learning_rate], factor = scalars[adamw_gradient_factor];
  const float inverse_correction1 = 1.0f / scalars[adamw_correction1], inverse_correction2 = 1.0f / scalars[adamw_correction2];
  Pack<float, W> w = load<float, W>(weights + i), m = load<float, W>(exp_avg + i), v = load<float, W>(exp_avg_sq + i);
  const Pack<float, W> gradient = load<float, W>(gradients + i);
  for (int j = 0; j < W; ++j) {
    const float g = factor * gradient.at[j];
    m.at[j] = constants.beta1 * m.at[j] + (1.0f - constants.beta1) * g;
    v.at[j] = constants.beta2 * v.at[j] + (1.0f - constants.beta2) * (g * g);
    const float update = m.at[j] * inverse_correction1 / (sqrtf(v.at[j] * inverse_correction2) + constants.eps);
    w.at[j] -= rate * (constants.weight_decay * w.at[j] + update);
  }
  store(weights + i, w);
  store(exp_avg + i, m);
  store(exp_avg_sq + i, v);
}

// Block sums, then their sum by one block: the order follows from the count alone.
constexpr std::int64_t most_blocks = 1024, block_elements = 4096;

std::int64_t blocks_of(std::int64_t count) {
  return std::clamp<std::int64_t>((count + block_elements - 1) / block_elements, 1, most_blocks);
}

__global__ void square_blocks(std::int64_t count, double* partial, const float* values) {
  double sum = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * threads)
    sum += static_cast<double>(values[i]) * values[i];
  sum = block_reduce<Sum, threads>(sum, 0.0);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void add_squares(std::int64_t blocks, double* total, const double* partial) {
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < blocks; i += threads) sum += partial[i];
  sum = block_reduce<Sum, threads>(sum, 0.0);
  if (threadIdx.x == 0) *total += sum;
}

}  // namespace

void adamw(Stream& stream, const AdamWTensors& tensors, const Tensor& step_scalars, const AdamWConstants& constants,
           const StochasticRounding&) {
  const Tensor &master = tensors.master, &gradients = tensors.gradients, &exp_avg = tensors.exp_avg, &exp_avg_sq = tensors.exp_avg_sq;
  require_fp32("AdamW", {&master, &tensors.weights, &gradients, &exp_avg, &exp_avg_sq, &step_scalars});
  BALEEN_CHECK(!tensors.weights.defined(), "compute weights in fp32 are the master");
  const std::int64_t count = master.elements();
  BALEEN_CHECK(gradients.elements() == count && exp_avg.elements() == count && exp_avg_sq.elements() == count, count, gradients.elements());
  BALEEN_CHECK(step_scalars.elements() == adamw_scalars, step_scalars.elements());
  if (count == 0) return;
  for_width<float>(count, {master.data(), gradients.data(), exp_avg.data(), exp_avg_sq.data()}, [&](auto width) {
    constexpr int W = decltype(width)::value;
    update_elements<W><<<blocks_for(count, threads * W), threads, 0, native_stream(stream)>>>(
        count, master.as<float>(), gradients.as<float>(), exp_avg.as<float>(), exp_avg_sq.as<float>(), step_scalars.as<float>(), constants);
  });
  check_launch("AdamW");
}

std::size_t sum_of_squares_workspace(std::int64_t count) {
  return static_cast<std::size_t>(blocks_of(count)) * sizeof(double);
}

void sum_of_squares(Stream& stream, const Tensor& sum, const Tensor& values, void* workspace) {
  require_fp32("sum of squares", {&values});
  BALEEN_CHECK(sum.elements() == 1, sum.elements());
  const std::int64_t count = values.elements(), blocks = blocks_of(count);
  if (count == 0) return;
  auto* partial = static_cast<double*>(workspace);
  const gpuStream_t native = native_stream(stream);
  square_blocks<<<static_cast<unsigned>(blocks), threads, 0, native>>>(count, partial, values.as<float>());
  check_launch("sum of squares");
  add_squares<<<1, threads, 0, native>>>(blocks, sum.as<double>(), partial);
  check_launch("sum of squares");
}

}  // namespace baleen::ops::gpu
