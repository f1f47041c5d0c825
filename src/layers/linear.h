// A linear layer y = x · Wᵀ, where W may be several parameters stacked (Q, K and V; gate and up).
#pragma once

#include <vector>

#include "layers/context.h"

namespace baleen {

// Parts that lie one behind the other in their unit are multiplied in one product, others one by one into their columns of y.
class Linear {
 public:
  // Each part [O_i, I]; y has O = Σ O_i columns.
  Linear(const UnitStorage& units, std::vector<ParameterId> parts);

  std::int64_t inputs() const { return inputs_; }    // I
  std::int64_t outputs() const { return outputs_; }  // O

  // y [N, O] = x [N, I] · Wᵀ.
  void forward(const LayerContext& context, const Tensor& y, const Tensor& x) const;
  // d_x [N, I] = d_y [N, O] · W.
  void backward_input(const LayerContext& context, const Tensor& d_x, const Tensor& d_y) const;
  // d_W += d_yᵀ · x, in fp32.
  void backward_weight(const LayerContext& context, const Tensor& d_y, const Tensor& x) const;

 private:
  // Consecutive parts that are contiguous in memory.
  struct Run {
    ParameterId first;
    std::int64_t begin = 0, rows = 0;  // columns of y, rows of W
  };
  std::vector<Run> runs_;
  std::int64_t inputs_ = 0, outputs_ = 0;
};

}  // namespace baleen
