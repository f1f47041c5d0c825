// AdamW with decoupled weight decay (I. Loshchilov, F. Hutter, arXiv 1711.05101) over flat memory.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

struct AdamWConstants {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float weight_decay = 0.1f;
};

namespace cpu {
void adamw(const Tensor& weights, const Tensor& gradients, const Tensor& exp_avg, const Tensor& exp_avg_sq, const Tensor& step_scalars,
           const AdamWConstants& constants);
void sum_of_squares(const Tensor& sum, const Tensor& values);
}  // namespace cpu
namespace gpu {
void adamw(Stream& stream, const Tensor& weights, const Tensor& gradients, const Tensor& exp_avg, const Tensor& exp_avg_sq,
           const Tensor& step_scalars, const AdamWConstants& constants);
std::size_t sum_of_squares_workspace(std::int64_t count);
void sum_of_squares(Stream& stream, const Tensor& sum, const Tensor& values, void* workspace);
}  // namespace gpu

// What changes each step, in device memory so that a captured graph can be replayed.
// step_scalars [4] fp32: learning rate, 1 - beta1^step, 1 - beta2^step, factor on the gradients (clipping).
enum AdamWScalar { adamw_learning_rate, adamw_correction1, adamw_correction2, adamw_gradient_factor };

// weights, gradients, exp_avg, exp_avg_sq [n] fp32, the first and the last two updated in place:
//   g = factor · gradient;  m = β1·m + (1-β1)·g;  v = β2·v + (1-β2)·g²
//   w -= lr · (weight_decay · w + (m / correction1) / (sqrt(v / correction2) + eps))
inline void adamw(Context& context, const Tensor& weights, const Tensor& gradients, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                  const Tensor& step_scalars, const AdamWConstants& constants) {
  dispatch(
      context, [&] { cpu::adamw(weights, gradients, exp_avg, exp_avg_sq, step_scalars, constants); },
      [&] { gpu::adamw(context.stream, weights, gradients, exp_avg, exp_avg_sq, step_scalars, constants); });
}

// sum [1] fp64 += Σ values² over values [n] fp32; squares and sums in fp64, in an order that depends on n alone (fixed blocks).
inline void sum_of_squares(Context& context, const Tensor& sum, const Tensor& values) {
  const Arena::Scope scope(context.scratch);
  const Tensor partial =
      workspace(context, "sum of squares workspace", no_bytes, [&] { return gpu::sum_of_squares_workspace(values.elements()); });
  dispatch(context, [&] { cpu::sum_of_squares(sum, values); }, [&] { gpu::sum_of_squares(context.stream, sum, values, partial.data()); });
}

}  // namespace baleen::ops
