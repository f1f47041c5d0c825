#include "layers/mlp.h"

#include <utility>

namespace baleen {

Mlp::Mlp(Activation activation, Linear up, Linear down)
    : activation_(activation), up_projection_(std::move(up)), down_projection_(std::move(down)) {
  const std::int64_t parts = activation == Activation::swiglu ? 2 : 1;
  BALEEN_CHECK(up_projection_.outputs() == parts * down_projection_.inputs(), up_projection_.outputs(), down_projection_.inputs());
}

Mlp::Saved Mlp::activate(const LayerContext& context, const Tensor& x) const {
  const std::int64_t tokens = x.size(0) * (context.tensor.divides_tokens() ? context.tensor.size() : 1);
  Saved saved;
  saved.up = context.save(activation_ == Activation::swiglu ? "mlp gate_up" : "mlp up", x.dtype(), {tokens, up_projection_.outputs()});
  saved.activation = context.save("mlp activation", x.dtype(), {tokens, down_projection_.inputs()});
  context.tensor.gather_through(context.ops, x, "mlp input", [&](std::int64_t first, const Tensor& rows) {
    const Tensor up = saved.up.rows(first, rows.size(0));
    const Tensor activation = saved.activation.rows(first, rows.size(0));
    if (activation_ == Activation::swiglu)
      up_projection_.forward_swiglu(context, activation, up, rows);
    else
      up_projection_.forward_gelu(context, activation, up, rows);
  });
  return saved;
}

Mlp::Saved Mlp::forward(const LayerContext& context, const Tensor& y, const Tensor& x) const {
  Saved saved = activate(context, x);
  context.tensor.sum_through(context.ops, y, "mlp summand", [&](std::int64_t first, const Tensor& rows) {
    down_projection_.forward(context, rows, saved.activation.rows(first, rows.size(0)));
  });
  return saved;
}

void Mlp::backward_input(const LayerContext& context, const Saved& saved, Gradients& gradients, const Tensor& d_x) const {
  const std::int64_t tokens = gradients.d_out.size(0);
  if (activation_ == Activation::swiglu) {
    gradients.d_up = context.scratch("mlp d_gate_up", d_x.dtype(), {tokens, up_projection_.outputs()});
    const Arena::Scope scope(context.ops.scratch);
    const Tensor d_activation = context.scratch("mlp d_activation", d_x.dtype(), {tokens, down_projection_.inputs()});
    down_projection_.backward_input_swiglu(context, gradients.d_up, d_activation, gradients.d_out, saved.up);
  } else {
    gradients.d_up = context.scratch("mlp d_up", d_x.dtype(), {tokens, up_projection_.outputs()});
    down_projection_.backward_input_gelu(context, gradients.d_up, gradients.d_out, saved.up);
  }
  context.tensor.sum_through(context.ops, d_x, "mlp d_input", [&](std::int64_t first, const Tensor& rows) {
    up_projection_.backward_input(context, rows, gradients.d_up.rows(first, rows.size(0)));
  });
}

void Mlp::backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const {
  down_projection_.backward_weight(context, gradients.d_out, saved.activation);
  up_projection_.backward_weight(context, gradients.d_up, x);
}

}  // namespace baleen
