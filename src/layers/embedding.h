// Token embedding, with learned positions added where the model has them.
#pragma once

#include <optional>

#include "layers/context.h"

namespace baleen {

class Embedding {
 public:
  // `positions` [P, C]: a learned row a position (GPT-2).
  explicit Embedding(ParameterId table, std::optional<ParameterId> positions = {}) : table_(table), positions_(positions) {}

  // out, a part of [N, C] = the table's rows of ids [N] int32, plus the rows of sequences.positions. Where ranks share the table, ids count
  // from the first row that this one has, ops::absent_id for others.
  void forward(const LayerContext& context, const Sequences& sequences, const Tensor& out, const Tensor& ids) const;
  // There is no gradient of the input: backward is its weight half alone.
  void backward_weight(const LayerContext& context, const Sequences& sequences, const Tensor& d_out, const Tensor& ids) const;

 private:
  ParameterId table_;
  std::optional<ParameterId> positions_;
};

}  // namespace baleen
