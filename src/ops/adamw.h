// AdamW with decoupled weight decay (I. Loshchilov, F. Hutter, arXiv 1711.05101) over flat memory.
#pragma once

#include <cstdint>

#include "base/rng.h"
#include "ops/context.h"

namespace baleen::ops {

struct AdamWConstants {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0.1f;
};

// What one update reads and writes, all [n] and views of whatever slice the caller owns.
struct AdamWTensors {
  Tensor master;               // fp32 or bf16: updated
  Tensor weights;              // undefined, or bf16: receives master rounded to nearest, ties to even
  Tensor gradients;            // fp32 or bf16: read
  Tensor exp_avg, exp_avg_sq;  // both fp32 or both bf16: updated
};

// How master and moments are rounded where they are bf16: up or down at random, with the probabilities that make the expected value exact
// (S. Gupta et al., arXiv 1502.02551). Element i of the slice is element e = first + i of a parameter. The 16 bits that are added below a
// value's upper half are half e % 2 (0: the lower) of word e % 8 / 2 of Philox(rounding_key(…))(low = e / 8, high = 4 · step + tensor),
// where tensor is 0 for master, 1 for exp_avg, 2 for exp_avg_sq: they depend on neither layout, slices, threads nor vector width.
struct StochasticRounding {
  std::uint64_t seed = 0;
  std::uint64_t key = 0;  // a hash of the parameter's name
  std::uint64_t first = 0;
};
enum StochasticTensor : std::uint64_t { stochastic_master, stochastic_exp_avg, stochastic_exp_avg_sq };
inline std::uint64_t rounding_key(const StochasticRounding& rounding) {
  return derive_key(rounding.seed, rounding.key);
}

// What changes each step, in device memory so that a captured graph can be replayed.
// step_scalars [8] fp32: learning rate, 1 - beta1^step, 1 - beta2^step, factor on the gradients (clipping), the step itself (below 2^24,
// hence exact), and whether to leave everything as it is (not 0: the update is skipped); the rest is not read.
enum AdamWScalar { adamw_learning_rate, adamw_correction1, adamw_correction2, adamw_gradient_factor, adamw_step, adamw_skip };
inline constexpr std::int64_t adamw_scalars = 8;

namespace cpu {
void adamw(const AdamWTensors& tensors, const Tensor& step_scalars, const AdamWConstants& constants, const StochasticRounding& rounding);
void sum_of_squares(const Tensor& sum, const Tensor& values);
}  // namespace cpu
namespace gpu {
void adamw(Stream& stream, const AdamWTensors& tensors, const Tensor& step_scalars, const AdamWConstants& constants,
           const StochasticRounding& rounding);
std::size_t sum_of_squares_workspace(std::int64_t count);
void sum_of_squares(Stream& stream, const Tensor& sum, const Tensor& values, void* workspace);
}  // namespace gpu

// In fp32, with each result rounded once to what its tensor holds, after use (the update takes m and v before they are rounded):
//   g = factor · gradient;  m = β1·m + (1-β1)·g;  v = β2·v + (1-β2)·g²
//   w -= lr · (weight_decay · w + (m / correction1) / (sqrt(v / correction2) + eps))
inline void adamw(Context& context, const AdamWTensors& tensors, const Tensor& step_scalars, const AdamWConstants& constants,
                  const StochasticRounding& rounding) {
  dispatch(
      context, [&] { cpu::adamw(tensors, step_scalars, constants, rounding); },
      [&] { gpu::adamw(context.stream, tensors, step_scalars, constants, rounding); });
}

// sum [1] fp64 += Σ values² over values [n] fp32 or bf16; squares and sums in fp64, in an order that depends on n alone (fixed blocks).
inline void sum_of_squares(Context& context, const Tensor& sum, const Tensor& values) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial =
      workspace(context, "sum of squares workspace", no_bytes, [&] { return gpu::sum_of_squares_workspace(values.elements()); });
  dispatch(context, [&] { cpu::sum_of_squares(sum, values); }, [&] { gpu::sum_of_squares(context.stream, sum, values, partial.data()); });
}

}  // namespace baleen::ops
