#include "layers/embedding.h"

#include "ops/elementwise.h"
#include "ops/embedding.h"

namespace baleen {

void Embedding::forward(const LayerContext& context, const Sequences& sequences, const Tensor& out, const Tensor& ids) const {
  ops::embedding_forward(context.ops, out, ids, context.units.weight(table_));
  if (!positions_) return;
  const Arena::Scope scope(context.ops.scratch);
  const Tensor rows = context.scratch("position embedding", out.dtype(), {out.size(0), out.size(1)});
  ops::embedding_forward(context.ops, rows, sequences.positions, context.units.weight(*positions_));
  ops::add(context.ops, out, out, rows);
}

void Embedding::backward_weight(const LayerContext& context, const Sequences& sequences, const Tensor& d_out, const Tensor& ids) const {
  if (context.units.parameter(table_).trainable) ops::embedding_backward(context.ops, context.units.gradient(table_), d_out, ids);
  if (positions_ && context.units.parameter(*positions_).trainable)
    ops::embedding_backward(context.ops, context.units.gradient(*positions_), d_out, sequences.positions);
}

}  // namespace baleen
