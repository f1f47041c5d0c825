#include "layers/embedding.h"

#include "ops/embedding.h"

namespace baleen {

void Embedding::forward(const LayerContext& context, const Tensor& out, const Tensor& ids) const {
  ops::embedding_forward(context.ops, out, ids, context.units.weight(table_));
}

void Embedding::backward_weight(const LayerContext& context, const Tensor& d_out, const Tensor& ids) const {
  if (!context.units.parameter(table_).trainable) return;
  ops::embedding_backward(context.ops, context.units.gradient(table_), d_out, ids);
}

}  // namespace baleen
