// Llama's gated MLP: y = (silu(x·Wgateᵀ) · (x·Wupᵀ)) · Wdownᵀ.
#pragma once

#include "layers/linear.h"

namespace baleen {

class Mlp {
 public:
  struct Saved {
    Tensor gate_up;     // [N, 2F]
    Tensor activation;  // [N, F]
  };
  struct Gradients {
    Tensor d_out;      // [N, C]
    Tensor d_gate_up;  // [N, 2F]
  };

  Mlp(const UnitStorage& units, ParameterId gate, ParameterId up, ParameterId down);

  // y [N, C] = mlp(x [N, C]).
  Saved forward(const LayerContext& context, const Tensor& y, const Tensor& x) const;
  // d_x [N, C] from gradients.d_out; fills gradients.d_gate_up.
  void backward_input(const LayerContext& context, const Saved& saved, Gradients& gradients, const Tensor& d_x) const;
  void backward_weight(const LayerContext& context, const Saved& saved, const Gradients& gradients, const Tensor& x) const;

 private:
  Linear gate_up_projection_, down_projection_;
};

}  // namespace baleen
