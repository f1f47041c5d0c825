// The norm of the whole gradient, and the factor that clips it.
#pragma once

#include "comm/communicator.h"
#include "ops/context.h"
#include "sharding/unit_storage.h"

namespace baleen {

// sqrt(Σ g²) over all parameters, after reduction. Each rank of the axis adds the squares of the slices it owns, in fp64, and the sums are
// all-reduced: every element counts once, and every ZeRO stage gets the same bits. Waits for the result.
double global_gradient_norm(ops::Context& context, Communicator& axis, const UnitStorage& units, const Tensor& sum);

// min(1, limit / norm); 1 where limit is 0 (no clipping). As torch.nn.utils.clip_grad_norm_, whose denominator is norm + 1e-6.
double clip_factor(double norm, double limit);

}  // namespace baleen
