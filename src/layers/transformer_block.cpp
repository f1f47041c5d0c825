#include "layers/transformer_block.h"

#include <utility>

namespace baleen {

TransformerBlock::TransformerBlock(Norm attention_norm, Attention attention, Norm mlp_norm, Mlp mlp)
    : attention_norm_(attention_norm), mlp_norm_(mlp_norm), attention_(std::move(attention)), mlp_(std::move(mlp)) {}

TransformerBlock::Saved TransformerBlock::forward(const LayerContext& context, const Sequences& sequences, const BlockDeltas& deltas,
                                                  ResidualStream& stream, Recompute recompute) const {
  const Arena::Scope scope(context.ops.scratch);
  const bool selective = recompute == Recompute::selective, full = recompute == Recompute::full;
  const LayerContext nothing = context.keeping_nothing();
  const std::int64_t tokens = stream.residual.size(0), width = stream.residual.size(1);
  const DType dtype = stream.residual.dtype();
  Saved saved;
  saved.recompute = recompute;
  if (full && stream.delta.defined()) saved.attention_norm.input = context.save("block input", dtype, {tokens, width});
  if (full) saved.mlp_norm.input = deltas.middle;
  if (selective)
    for (Norm::Saved* norm : {&saved.attention_norm, &saved.mlp_norm}) norm->out = context.scratch("norm out", dtype, {tokens, width});
  const LayerContext& attention_context = full ? nothing : context;
  saved.attention_norm = attention_norm_.forward(attention_context, stream, saved.attention_norm);
  saved.attention = attention_.forward(attention_context, sequences, deltas.attention, saved.attention_norm.out);
  saved.mlp_norm = mlp_norm_.forward(attention_context, {saved.attention_norm.input, deltas.attention}, saved.mlp_norm);
  saved.mlp = mlp_.forward(recompute == Recompute::none ? context : nothing, deltas.mlp, saved.mlp_norm.out);
  stream = {saved.mlp_norm.input, deltas.mlp};

  // Nobody may use what lies in the scratch from here on.
  if (selective) {
    saved.attention_norm.out = saved.mlp_norm.out = Tensor();
    saved.mlp = {};
  }
  if (full) {
    Saved kept;
    kept.recompute = recompute;
    kept.attention_norm.input = saved.attention_norm.input;
    return kept;
  }
  return saved;
}

TransformerBlock::Saved TransformerBlock::restore(const LayerContext& context, const Sequences& sequences, const Saved& saved) const {
  if (saved.recompute == Recompute::none) return saved;
  const LayerContext scratch = context.keeping_nothing();
  Saved whole = saved;
  // A norm of the sum that was saved has the bits of the norm that made the sum.
  whole.attention_norm = attention_norm_.forward(scratch, {saved.attention_norm.input, Tensor()}, saved.attention_norm);
  if (saved.recompute == Recompute::full) {
    const Tensor& input = saved.attention_norm.input;
    const Tensor delta = context.scratch("attention delta", input.dtype(), {input.size(0), input.size(1)});
    whole.attention = attention_.forward(scratch, sequences, delta, whole.attention_norm.out);
    whole.mlp_norm = mlp_norm_.forward(scratch, {input, delta});
  } else {
    whole.mlp_norm = mlp_norm_.forward(scratch, {saved.mlp_norm.input, Tensor()}, saved.mlp_norm);
  }
  whole.mlp = mlp_.activate(scratch, whole.mlp_norm.out);
  return whole;
}

void TransformerBlock::forward_cached(const LayerContext& context, const Sequences& sequences, KvCache& cache, const BlockDeltas& deltas,
                                      ResidualStream& stream) const {
  const Norm::Saved attention_norm = attention_norm_.forward(context, stream);
  attention_.forward_cached(context, sequences, cache, deltas.attention, attention_norm.out);
  const Norm::Saved mlp_norm = mlp_norm_.forward(context, {attention_norm.input, deltas.attention});
  mlp_.forward(context, deltas.mlp, mlp_norm.out);
  stream = {mlp_norm.input, deltas.mlp};
}

TransformerBlock::Gradients TransformerBlock::backward_input(const LayerContext& context, const Sequences& sequences, const Saved& saved,
                                                             const Tensor& d_in, const Tensor& d_out, bool together) const {
  const auto through = [&](const Norm& norm, const Norm::Saved& of, const Tensor& d_input, const Tensor& d_output,
                           const Tensor& d_residual) {
    if (together)
      norm.backward(context, of, d_input, d_output, d_residual);
    else
      norm.backward_input(context, of, d_input, d_output, d_residual);
  };
  const std::int64_t tokens = d_out.size(0), width = d_out.size(1);
  const DType dtype = d_out.dtype();
  Gradients gradients;
  const TensorParallel& tensor = context.tensor;
  // The stream is residual + delta: both have the stream's gradient.
  gradients.mlp.d_out = tensor.gather(context.ops, d_out, "mlp d_out");
  gradients.d_mlp_norm = context.scratch("block d_mlp_norm", dtype, {tokens, width});
  mlp_.backward_input(context, saved.mlp, gradients.mlp, gradients.d_mlp_norm);
  const Tensor d_middle = context.scratch("block d_middle", dtype, {tokens, width});
  through(mlp_norm_, saved.mlp_norm, d_middle, gradients.d_mlp_norm, d_out);

  gradients.attention.d_out = tensor.gather(context.ops, d_middle, "attention d_out");
  gradients.d_attention_norm = context.scratch("block d_attention_norm", dtype, {tokens, width});
  attention_.backward_input(context, sequences, saved.attention, gradients.attention, gradients.d_attention_norm, together);
  through(attention_norm_, saved.attention_norm, d_in, gradients.d_attention_norm, d_middle);
  return gradients;
}

void TransformerBlock::backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients,
                                       bool norm_weights) const {
  const Arena::Scope scope(context.ops.scratch);
  const TensorParallel& tensor = context.tensor;
  const auto mlp_input = tensor.begin_gather(context.ops, saved.mlp_norm.out, "mlp input");
  const auto attention_input = tensor.begin_gather(context.ops, saved.attention_norm.out, "attention input");
  mlp_.backward_weight(context, saved.mlp, gradients.mlp, tensor.finish(context.ops, mlp_input));
  if (norm_weights) mlp_norm_.backward_weight(context, saved.mlp_norm, gradients.d_mlp_norm);
  attention_.backward_weight(context, saved.attention, gradients.attention, tensor.finish(context.ops, attention_input));
  if (norm_weights) attention_norm_.backward_weight(context, saved.attention_norm, gradients.d_attention_norm);
}

}  // namespace baleen
