#include "layers/mlp.h"

#include <utility>

#include "ops/swiglu.h"

namespace baleen {

Mlp::Mlp(Activation activation, Linear up, Linear down)
    : activation_(activation), up_projection_(std::move(up)), down_projection_(std::move(down)) {
  const std::int64_t parts = activation == Activation::swiglu ? 2 : 1;
  BALEEN_CHECK(up_projection_.outputs() == parts * down_projection_.inputs(), up_projection_.outputs(), down_projection_.inputs());
}

Mlp::Saved Mlp::activate(const LayerContext& context, const Tensor& x) const {
  const std::int64_t tokens = x.size(0);
  Saved saved;
  saved.up = context.save(activation_ == Activation::swiglu ? "mlp gate_up" : "mlp up", x.dtype(), {tokens, up_projection_.outputs()});
  saved.activation = context.save("mlp activation", x.dtype(), {tokens, down_projection_.inputs()});
  if (activation_ == Activation::swiglu) {
    up_projection_.forward(context, saved.up, x);
    ops::swiglu_forward(context.ops, saved.activation, saved.up);
  } else {
    up_projection_.forward_gelu(context, saved.activation, saved.up, x);
  }
  return saved;
}

Mlp::Saved Mlp::forward(const LayerContext& context, const Tensor& y, const Tensor& x) const {
  Saved saved = activate(context, x);
  down_projection_.forward(context, y, saved.activation);
  return saved;
}

void Mlp::backward_input(const LayerContext& context, const Saved& saved, Gradients& gradients, const Tensor& d_x) const {
  const std::int64_t tokens = d_x.size(0);
  if (activation_ == Activation::swiglu) {
    gradients.d_up = context.scratch("mlp d_gate_up", d_x.dtype(), {tokens, up_projection_.outputs()});
    const Arena::Scope scope(context.ops.scratch);
    const Tensor d_activation = context.scratch("mlp d_activation", d_x.dtype(), {tokens, down_projection_.inputs()});
    down_projection_.backward_input(context, d_activation, gradients.d_out);
    ops::swiglu_backward(context.ops, gradients.d_up, d_activation, saved.up);
  } else {
    gradients.d_up = context.scratch("mlp d_up", d_x.dtype(), {tokens, up_projection_.outputs()});
    down_projection_.backward_input_gelu(context, gradients.d_up, gradients.d_out, saved.up);
  }
  up_projection_.backward_input(context, d_x, gradients.d_up);
}

void Mlp::backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const {
  down_projection_.backward_weight(context, gradients.d_out, saved.activation);
  up_projection_.backward_weight(context, gradients.d_up, x);
}

}  // namespace baleen
