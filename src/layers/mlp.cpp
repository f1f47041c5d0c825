#include "layers/mlp.h"

#include "ops/swiglu.h"

namespace baleen {

Mlp::Mlp(const UnitStorage& units, ParameterId gate, ParameterId up, ParameterId down)
    : gate_up_projection_(units, {gate, up}), down_projection_(units, {down}) {}

Mlp::Saved Mlp::forward(const LayerContext& context, const Tensor& y, const Tensor& x) const {
  const std::int64_t tokens = x.size(0), width = down_projection_.inputs();
  Saved saved;
  saved.gate_up = context.save("mlp gate_up", x.dtype(), {tokens, 2 * width});
  saved.activation = context.save("mlp activation", x.dtype(), {tokens, width});
  gate_up_projection_.forward(context, saved.gate_up, x);
  ops::swiglu_forward(context.ops, saved.activation, saved.gate_up);
  down_projection_.forward(context, y, saved.activation);
  return saved;
}

void Mlp::backward_input(const LayerContext& context, const Saved& saved, Gradients& gradients, const Tensor& d_x) const {
  const std::int64_t tokens = d_x.size(0), width = down_projection_.inputs();
  gradients.d_gate_up = context.scratch("mlp d_gate_up", d_x.dtype(), {tokens, 2 * width});
  {
    const Arena::Scope scope(context.ops.scratch);
    const Tensor d_activation = context.scratch("mlp d_activation", d_x.dtype(), {tokens, width});
    down_projection_.backward_input(context, d_activation, gradients.d_out);
    ops::swiglu_backward(context.ops, gradients.d_gate_up, d_activation, saved.gate_up);
  }
  gate_up_projection_.backward_input(context, d_x, gradients.d_gate_up);
}

void Mlp::backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const {
  down_projection_.backward_weight(context, gradients.d_out, saved.activation);
  gate_up_projection_.backward_weight(context, gradients.d_gate_up, x);
}

}  // namespace baleen
