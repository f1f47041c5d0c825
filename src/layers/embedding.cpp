#include "layers/embedding.h"

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace baleen {

void Embedding::forward(const LayerContext& context, const Sequences& sequences, const Tensor& out, const Tensor& ids) const {
  const Arena::Scope scope(context.ops.scratch);
  const Tensor whole = context.tensor.summand(context.ops, out, "embedding summand");
  ops::embedding_forward(context.ops, whole, ids, context.units.weight(table_));
  if (positions_ && context.tensor.rank() == 0) {
    const Tensor rows = context.scratch("position embedding", whole.dtype(), {whole.size(0), whole.size(1)});
    ops::embedding_forward(context.ops, rows, sequences.positions, context.units.weight(*positions_));
    ops::add(context.ops, whole, whole, rows);
  }
  context.tensor.sum(context.ops, out, whole);
}

void Embedding::backward_weight(const LayerContext& context, const Sequences& sequences, const Tensor& d_out, const Tensor& ids) const {
  const Arena::Scope scope(context.ops.scratch);
  const Tensor whole = context.tensor.gather(context.ops, d_out, "embedding d_out");
  if (context.units.parameter(table_).trainable)
    ops::embedding_backward(context.ops, context.units.gradient_to_add(context.ops.stream, table_), whole, ids);
  if (positions_ && context.units.parameter(*positions_).trainable)
    ops::embedding_backward(context.ops, context.units.gradient_to_add(context.ops.stream, *positions_), whole, sequences.positions);
}

}  // namespace baleen
