#include "ops/update_decision.h"

#include "ops/gpu/kernel.cuh"

namespace baleen::ops::gpu {
namespace {

__global__ void decide(float* scalars, const double* loss_sum, const double* squares, double limit) {
  const double norm = sqrt(*squares), factor = limit / (norm + 1e-6);
  scalars[adamw_gradient_factor] = static_cast<float>(limit != 0 && factor < 1 ? factor : 1.0);
  if (!isfinite(*loss_sum) || !isfinite(norm)) scalars[adamw_skip] = 1;
}

}  // namespace

void decide_update(Stream& stream, const Tensor& step_scalars, const Tensor& loss_sum, const Tensor& squares, double limit) {
  require_fp32("the update's decision", {&step_scalars});
  BALEEN_CHECK(step_scalars.elements() == adamw_scalars && loss_sum.elements() == 1 && squares.elements() == 1, step_scalars.elements());
  decide<<<1, 1, 0, native_stream(stream)>>>(step_scalars.as<float>(), loss_sum.as<double>(), squares.as<double>(), limit);
  check_launch("the update's decision");
}

}  // namespace baleen::ops::gpu
