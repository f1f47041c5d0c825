#include "optim/global_norm.h"

#include <cmath>

#include "ops/adamw.h"

namespace baleen {

void sum_gradient_squares(ops::Context& context, Communicator& axis, const UnitStorage& units, const Tensor& sum) {
  context.stream.fill_zero(sum.data(), sum.bytes());
  for (int unit = 0; unit < units.units(); ++unit) ops::sum_of_squares(context, sum, units.slice_gradients(unit));
  if (context.stream.measuring() || axis.size() == 1) return;
  context.stream.wait(axis.all_reduce(sum.data(), sum.data(), 1, DType::f64, ReduceOp::sum, context.stream.record()));
}

double global_gradient_norm(ops::Context& context, Communicator& axis, const UnitStorage& units, const Tensor& sum) {
  sum_gradient_squares(context, axis, units, sum);
  double value = 0;
  context.stream.copy(&value, sum.data(), sizeof value);
  context.stream.synchronize();
  return std::sqrt(value);
}

}  // namespace baleen
