// Tensor parallelism over a model's description: what each rank of axis tp holds of every parameter (M. Shoeybi et al., "Megatron-LM",
// arXiv 1909.08053; sequence parallelism: V. Korthikanti et al., arXiv 2205.05198).
#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"
#include "sharding/parameter.h"

namespace baleen {

struct TensorRank {
  int rank = 0, size = 1;
  bool sequence_parallel = true;  // norms and the residual stream hold T/tp tokens a rank
};

// Fills ParameterDescription::held. Slices need not be equal: a dim of n blocks gives rank r blocks [r·n/tp, (r+1)·n/tp). No-op for one
// rank.
void slice_units(std::vector<UnitDescription>& units, const TensorRank& tensor);

// Why the model cannot be sliced over `size` ranks, or empty.
std::string tensor_refusal(const ModelConfig& config, int size);

}  // namespace baleen
