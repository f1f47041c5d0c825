#include "layers/norm.h"

#include "ops/norm.h"

namespace baleen {

Norm::Saved Norm::forward(const LayerContext& context, const ResidualStream& in) const {
  const std::int64_t tokens = in.residual.size(0), width = in.residual.size(1);
  Saved saved;
  saved.input = in.delta.defined() ? context.save("norm input", in.residual.dtype(), {tokens, width}) : in.residual;
  saved.rstd = context.save("norm rstd", DType::f32, {tokens});
  saved.out = context.save("norm out", in.residual.dtype(), {tokens, width});
  ops::rms_norm_forward(context.ops, saved.out, saved.input, saved.rstd, in.residual, in.delta, context.units.weight(weight_), eps_);
  return saved;
}

void Norm::backward_input(const LayerContext& context, const Saved& saved, const Tensor& d_in, const Tensor& d_out,
                          const Tensor& d_residual) const {
  ops::rms_norm_backward_input(context.ops, d_in, d_out, d_residual, saved.input, saved.rstd, context.units.weight(weight_));
}

void Norm::backward_weight(const LayerContext& context, const Saved& saved, const Tensor& d_out) const {
  if (!context.units.parameter(weight_).trainable) return;
  ops::rms_norm_backward_weight(context.ops, context.units.gradient(weight_), d_out, saved.input, saved.rstd);
}

}  // namespace baleen
