// What an optimizer's update does with a step's gradients, decided where they are, so that the host need not wait for them.
#pragma once

#include "ops/adamw.h"
#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void decide_update(const Tensor& step_scalars, const Tensor& loss_sum, const Tensor& squares, double limit);
}  // namespace cpu
namespace gpu {
void decide_update(Stream& stream, const Tensor& step_scalars, const Tensor& loss_sum, const Tensor& squares, double limit);
}  // namespace gpu

// step_scalars [8] fp32 as adamw.h has them, loss_sum and squares [1] fp64. With norm = sqrt(squares):
//   step_scalars[adamw_gradient_factor] = min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 where limit is 0 (no
//   clipping) step_scalars[adamw_skip] = 1 where loss_sum or norm is not finite; else left as it is: once set, no update follows
inline void decide_update(Context& context, const Tensor& step_scalars, const Tensor& loss_sum, const Tensor& squares, double limit) {
  dispatch(
      context, [&] { cpu::decide_update(step_scalars, loss_sum, squares, limit); },
      [&] { gpu::decide_update(context.stream, step_scalars, loss_sum, squares, limit); });
}

}  // namespace baleen::ops
