// The MLP of a block: gated as Llama's, y = (silu(x·Wgateᵀ) · (x·Wupᵀ)) · Wdownᵀ, or plain as GPT-2's, y = gelu(x·Wupᵀ) · Wdownᵀ.
#pragma once

#include "layers/linear.h"

namespace baleen {

enum class Activation { swiglu, gelu };

class Mlp {
 public:
  struct Saved {
    Tensor up;          // [N, 2F] gate and up for swiglu, [N, F] for gelu
    Tensor activation;  // [N, F]
  };
  struct Gradients {
    Tensor d_out;  // [N, C]
    Tensor d_up;   // [N, 2F] or [N, F]
  };

  // `up` stacks gate and up for swiglu.
  Mlp(Activation activation, Linear up, Linear down);

  // All of it but the last product, which backward does not need.
  // x is a part of [N, C], as y below (TensorParallel).
  Saved activate(const LayerContext& context, const Tensor& x) const;
  // y = mlp(x).
  Saved forward(const LayerContext& context, const Tensor& y, const Tensor& x) const;
  // d_x, a part of [N, C], from gradients.d_out; fills gradients.d_up.
  void backward_input(const LayerContext& context, const Saved& saved, Gradients& gradients, const Tensor& d_x) const;
  void backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const;

 private:
  Activation activation_;
  Linear up_projection_, down_projection_;
};

}  // namespace baleen
