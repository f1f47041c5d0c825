#include "ops/adamw.h"

#include <algorithm>

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

template <class Master, class State, class Gradient>
struct Update {
  Master* master;
  BFloat16* weights;  // or null
  const Gradient* gradients;
  State *exp_avg, *exp_avg_sq;
  const float* scalars;  // as adamw.h describes them
  AdamWConstants constants;
  std::uint64_t key, first;  // of stochastic rounding
};

// What stochastic rounding adds below W elements' upper halves; elements `element`, … lie in one block of 8.
template <int W>
struct RandomHalves {
  std::uint32_t at[W] = {};

  __device__ void fill(std::uint64_t key, std::uint64_t element, std::uint64_t high) {
    const auto words = Philox(key)(element / 8, high);
    for (int j = 0; j < W; ++j) {
      const unsigned place = static_cast<unsigned>(element % 8) + j, word = place / 2;
      // A run-time index into the words would send them to memory.
      const std::uint32_t bits = word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
      at[j] = place % 2 == 0 ? bits & 0xffffu : bits >> 16;
    }
  }
};

// NaN and infinity stay what they are.
template <class T>
__device__ T rounded_at_random(float value, std::uint32_t random) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else
    return isfinite(value) ? BFloat16{static_cast<std::uint16_t>((__float_as_uint(value) + random) >> 16)} : to_bfloat16(value);
}

template <class Master, class State, class Gradient, int W>
__global__ void update_elements(std::int64_t count, Update<Master, State, Gradient> to) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W;
  if (i >= count || to.scalars[adamw_skip] != 0) return;
  const float rate = to.scalars[adamw_learning_rate], factor = to.scalars[adamw_gradient_factor];
  const float inverse_correction1 = 1.0f / to.scalars[adamw_correction1], inverse_correction2 = 1.0f / to.scalars[adamw_correction2];
  Pack<Master, W> w = load<Master, W>(to.master + i);
  Pack<State, W> m = load<State, W>(to.exp_avg + i), v = load<State, W>(to.exp_avg_sq + i);
  const Pack<Gradient, W> gradient = load<Gradient, W>(to.gradients + i);
  const std::uint64_t element = to.first + static_cast<std::uint64_t>(i), high = 4 * static_cast<std::uint64_t>(to.scalars[adamw_step]);
  RandomHalves<W> of_master, of_m, of_v;
  if constexpr (!std::is_same_v<Master, float>) of_master.fill(to.key, element, high + stochastic_master);
  if constexpr (!std::is_same_v<State, float>) {
    of_m.fill(to.key, element, high + stochastic_exp_avg);
    of_v.fill(to.key, element, high + stochastic_exp_avg_sq);
  }
  Pack<BFloat16, W> weights;
  for (int j = 0; j < W; ++j) {
    const float g = factor * as_float(gradient.at[j]), before = as_float(w.at[j]);
    const float mean = to.constants.beta1 * as_float(m.at[j]) + (1.0f - to.constants.beta1) * g;
    const float square = to.constants.beta2 * as_float(v.at[j]) + (1.0f - to.constants.beta2) * (g * g);
    const float update = mean * inverse_correction1 / (sqrtf(square * inverse_correction2) + to.constants.eps);
    w.at[j] = rounded_at_random<Master>(before - rate * (to.constants.weight_decay * before + update), of_master.at[j]);
    m.at[j] = rounded_at_random<State>(mean, of_m.at[j]);
    v.at[j] = rounded_at_random<State>(square, of_v.at[j]);
    weights.at[j] = rounded<BFloat16>(as_float(w.at[j]));
  }
  store(to.master + i, w);
  store(to.exp_avg + i, m);
  store(to.exp_avg_sq + i, v);
  if (to.weights != nullptr) store(to.weights + i, weights);
}

// Block sums, then their sum by one block: the order follows from the count alone.
constexpr std::int64_t most_blocks = 1024, block_elements = 4096;

std::int64_t blocks_of(std::int64_t count) {
  return std::clamp<std::int64_t>((count + block_elements - 1) / block_elements, 1, most_blocks);
}

template <class T, int W>
__global__ void square_blocks(std::int64_t count, double* partial, const T* values) {
  double sum = 0;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * W; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * threads * W) {
    const Pack<T, W> some = load<T, W>(values + i);
    for (int j = 0; j < W; ++j) sum += static_cast<double>(as_float(some.at[j])) * as_float(some.at[j]);
  }
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
           const StochasticRounding& rounding) {
  const Tensor &master = tensors.master, &gradients = tensors.gradients, &exp_avg = tensors.exp_avg, &exp_avg_sq = tensors.exp_avg_sq;
  require_fp32("AdamW", {&step_scalars});
  const std::int64_t count = master.elements();
  BALEEN_CHECK(gradients.elements() == count && exp_avg.elements() == count && exp_avg_sq.elements() == count, count, gradients.elements());
  BALEEN_CHECK(step_scalars.elements() == adamw_scalars && exp_avg.dtype() == exp_avg_sq.dtype(), step_scalars.elements());
  BALEEN_CHECK(!tensors.weights.defined() || tensors.weights.elements() == count, tensors.weights.elements(), count);
  if (count == 0) return;
  for_element_type(master.dtype(), "AdamW", [&](auto master_zero) {
    for_element_type(exp_avg.dtype(), "AdamW", [&](auto state_zero) {
      for_element_type(gradients.dtype(), "AdamW", [&](auto gradient_zero) {
        using Master = decltype(master_zero);
        using State = decltype(state_zero);
        using Gradient = decltype(gradient_zero);
        const Update<Master, State, Gradient> to{master.as<Master>(),
                                                 tensors.weights.defined() ? tensors.weights.as<BFloat16>() : nullptr,
                                                 gradients.as<Gradient>(),
                                                 exp_avg.as<State>(),
                                                 exp_avg_sq.as<State>(),
                                                 step_scalars.as<float>(),
                                                 constants,
                                                 rounding_key(rounding),
                                                 rounding.first};
        for_width<float>(
            rounding.first % 4 == 0 ? count : 1, {to.master, to.weights, to.gradients, to.exp_avg, to.exp_avg_sq}, [&](auto width) {
              constexpr int W = decltype(width)::value;
              update_elements<Master, State, Gradient, W><<<blocks_for(count, threads * W), threads, 0, native_stream(stream)>>>(count, to);
            });
      });
    });
  });
  check_launch("AdamW");
}

std::size_t sum_of_squares_workspace(std::int64_t count) {
  return static_cast<std::size_t>(blocks_of(count)) * sizeof(double);
}

void sum_of_squares(Stream& stream, const Tensor& sum, const Tensor& values, void* workspace) {
  BALEEN_CHECK(sum.elements() == 1, sum.elements());
  const std::int64_t count = values.elements(), blocks = blocks_of(count);
  if (count == 0) return;
  auto* partial = static_cast<double*>(workspace);
  const gpuStream_t native = native_stream(stream);
  for_element_type(values.dtype(), "sum of squares", [&](auto zero) {
    using T = decltype(zero);
    for_width<T>(count, {values.data()}, [&](auto width) {
      square_blocks<T, decltype(width)::value><<<static_cast<unsigned>(blocks), threads, 0, native>>>(count, partial, values.as<T>());
    });
  });
  check_launch("sum of squares");
  add_squares<<<1, threads, 0, native>>>(blocks, sum.as<double>(), partial);
  check_launch("sum of squares");
}

}  // namespace baleen::ops::gpu
