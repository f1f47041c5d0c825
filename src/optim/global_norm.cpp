#include "optim/global_norm.h"

#include <cmath>

#include "ops/adamw.h"

namespace baleen {

void sum_gradient_squares(ops::Context& context, const DataGroup& group, const UnitStorage& units, const Tensor& sum) {
  context.stream.fill_zero(sum.data(), sum.bytes());
  for (int unit = 0; group.counts_norms() && unit < units.units(); ++unit) {
    const SliceRange slice = units.slice(unit);
    for (const SliceRange& counted : units.layout(unit).counted()) {
      const std::size_t begin = std::max(slice.begin, counted.begin), end = std::min(slice.end, counted.end);
      if (begin >= end) continue;
      ops::sum_of_squares(
          context, sum,
          units.slice_gradients(unit).rows(static_cast<std::int64_t>(begin - slice.begin), static_cast<std::int64_t>(end - begin)));
    }
  }
  if (context.stream.measuring() || group.everyone->alone()) return;
  context.stream.wait(group.everyone->all_reduce(sum.data(), sum.data(), 1, DType::f64, ReduceOp::sum, context.stream.record()));
}

double global_gradient_norm(ops::Context& context, const DataGroup& group, const UnitStorage& units, const Tensor& sum) {
  sum_gradient_squares(context, group, units, sum);
  double value = 0;
  context.stream.copy(&value, sum.data(), sizeof value);
  context.stream.synchronize();
  return std::sqrt(value);
}

}  // namespace baleen
