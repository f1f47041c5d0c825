#include "ops/update_decision.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/checks.h"

namespace baleen::ops::cpu {

void decide_update(const Tensor& step_scalars, const Tensor& loss_sum, const Tensor& squares, double limit) {
  require_fp32("the update's decision", {&step_scalars});
  BALEEN_CHECK(step_scalars.elements() == adamw_scalars && loss_sum.elements() == 1 && squares.elements() == 1, step_scalars.elements());
  const double norm = std::sqrt(squares.as<double>()[0]);
  auto* const scalars = step_scalars.as<float>();
  scalars[adamw_gradient_factor] = static_cast<float>(limit == 0 ? 1.0 : std::min(1.0, limit / (norm + 1e-6)));
  if (!std::isfinite(loss_sum.as<double>()[0]) || !std::isfinite(norm)) scalars[adamw_skip] = 1;
}

}  // namespace baleen::ops::cpu
