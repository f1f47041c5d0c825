// Token embedding.
#pragma once

#include "layers/context.h"

namespace baleen {

class Embedding {
 public:
  explicit Embedding(ParameterId table) : table_(table) {}

  // out [N, C] = the table's rows of ids [N] int32.
  void forward(const LayerContext& context, const Tensor& out, const Tensor& ids) const;
  // There is no gradient of the input: backward is its weight half alone.
  void backward_weight(const LayerContext& context, const Tensor& d_out, const Tensor& ids) const;

 private:
  ParameterId table_;
};

}  // namespace baleen
