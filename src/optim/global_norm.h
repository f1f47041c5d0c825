// The norm of the whole gradient.
#pragma once

#include "ops/context.h"
#include "sharding/data_group.h"
#include "sharding/unit_storage.h"

namespace baleen {

// sqrt(Σ g²) over all parameters, after reduction. Each rank adds the squares of the slices it owns, in fp64, and the sums are
// all-reduced over the layout: every element counts once, on whatever ranks it has copies, and every ZeRO stage gets the same bits. Waits
// for the result.
double global_gradient_norm(ops::Context& context, const DataGroup& group, const UnitStorage& units, const Tensor& sum);
// Its square into sum [1] fp64, where the gradients are; only enqueued.
void sum_gradient_squares(ops::Context& context, const DataGroup& group, const UnitStorage& units, const Tensor& sum);

}  // namespace baleen
