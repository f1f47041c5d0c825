// The norm of the residual stream, fused with the addition that precedes it: RMSNorm, or LayerNorm where there is a bias.
#pragma once

#include <optional>

#include "layers/context.h"

namespace baleen {

// The residual stream between layers is a pair whose sum is meant: `residual` and a `delta` not yet added (undefined: none). The next norm
// adds it, which saves one pass over memory a sub-layer.
struct ResidualStream {
  Tensor residual, delta;  // [N, C]
};

class Norm {
 public:
  struct Saved {
    Tensor input;  // [N, C], the sum
    Tensor mean;   // [N] fp32; undefined for RMSNorm
    Tensor rstd;   // [N] fp32
    Tensor out;    // [N, C]
  };

  // RMSNorm.
  Norm(ParameterId weight, float eps) : weight_(weight), eps_(eps) {}
  // LayerNorm.
  Norm(ParameterId weight, ParameterId bias, float eps) : weight_(weight), bias_(bias), eps_(eps) {}

  // Tensors of `placed` are written where they are; the others are saved.
  Saved forward(const LayerContext& context, const ResidualStream& in, Saved placed = {}) const;
  // d_in [N, C] = d_residual + the gradient through the norm, given d_out [N, C].
  void backward_input(const LayerContext& context, const Saved& saved, const Tensor& d_in, const Tensor& d_out,
                      const Tensor& d_residual) const;
  void backward_weight(const LayerContext& context, const Saved& saved, const Tensor& d_out) const;
  // Both halves, which together read d_out and the input once.
  void backward(const LayerContext& context, const Saved& saved, const Tensor& d_in, const Tensor& d_out, const Tensor& d_residual) const;

 private:
  ParameterId weight_;
  std::optional<ParameterId> bias_;
  float eps_;
};

}  // namespace baleen
