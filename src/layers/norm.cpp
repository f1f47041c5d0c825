#include "layers/norm.h"

#include "ops/layer_norm.h"
#include "ops/norm.h"

namespace baleen {

Norm::Saved Norm::forward(const LayerContext& context, const ResidualStream& in, Saved saved) const {
  const std::int64_t tokens = in.residual.size(0), width = in.residual.size(1);
  const DType dtype = in.residual.dtype();
  if (!in.delta.defined()) saved.input = in.residual;
  if (!saved.input.defined()) saved.input = context.save("norm input", dtype, {tokens, width});
  if (bias_ && !saved.mean.defined()) saved.mean = context.save("norm mean", DType::f32, {tokens});
  if (!saved.rstd.defined()) saved.rstd = context.save("norm rstd", DType::f32, {tokens});
  if (!saved.out.defined()) saved.out = context.save("norm out", dtype, {tokens, width});
  if (bias_)
    ops::layer_norm_forward(context.ops, saved.out, saved.input, saved.mean, saved.rstd, in.residual, in.delta,
                            context.units.weight(weight_), context.units.weight(*bias_), eps_);
  else
    ops::rms_norm_forward(context.ops, saved.out, saved.input, saved.rstd, in.residual, in.delta, context.units.weight(weight_), eps_);
  return saved;
}

void Norm::backward_input(const LayerContext& context, const Saved& saved, const Tensor& d_in, const Tensor& d_out,
                          const Tensor& d_residual) const {
  const Tensor weight = context.units.weight(weight_);
  if (bias_)
    ops::layer_norm_backward_input(context.ops, d_in, d_out, d_residual, saved.input, saved.mean, saved.rstd, weight);
  else
    ops::rms_norm_backward_input(context.ops, d_in, d_out, d_residual, saved.input, saved.rstd, weight);
}

void Norm::backward_weight(const LayerContext& context, const Saved& saved, const Tensor& d_out) const {
  const bool trainable = context.units.parameter(weight_).trainable;
  if (bias_) BALEEN_CHECK(context.units.parameter(*bias_).trainable == trainable, context.units.parameter(*bias_).name);
  if (!trainable) return;
  const Tensor d_weight = context.units.gradient_to_add(context.ops.stream, weight_);
  if (bias_)
    ops::layer_norm_backward_weight(context.ops, d_weight, context.units.gradient_to_add(context.ops.stream, *bias_), d_out, saved.input,
                                    saved.mean, saved.rstd);
  else
    ops::rms_norm_backward_weight(context.ops, d_weight, d_out, saved.input, saved.rstd);
}

void Norm::backward(const LayerContext& context, const Saved& saved, const Tensor& d_in, const Tensor& d_out,
                    const Tensor& d_residual) const {
  if (!context.units.parameter(weight_).trainable) return backward_input(context, saved, d_in, d_out, d_residual);
  const Tensor weight = context.units.weight(weight_), d_weight = context.units.gradient_to_add(context.ops.stream, weight_);
  if (bias_) BALEEN_CHECK(context.units.parameter(*bias_).trainable, context.units.parameter(*bias_).name);
  if (bias_)
    ops::layer_norm_backward(context.ops, d_in, d_weight, context.units.gradient_to_add(context.ops.stream, *bias_), d_out, d_residual,
                             saved.input, saved.mean, saved.rstd, weight);
  else
    ops::rms_norm_backward(context.ops, d_in, d_weight, d_out, d_residual, saved.input, saved.rstd, weight);
}

}  // namespace baleen
