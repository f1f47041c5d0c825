// A linear layer y = x · Wᵀ + bias, where W may be several parameters stacked (Q, K and V; gate and up).
#pragma once

#include <vector>

#include "layers/context.h"
#include "ops/matmul.h"

namespace baleen {

// How a weight is stored. Hugging Face's Linear is [O, I]; its Conv1D, which GPT-2 is made of, is [I, O]. Both are used as they are: a
// product reads either matrix as its transpose for free, so a checkpoint keeps Hugging Face's names and shapes and nothing is copied.
enum class WeightShape { output_input, input_output };

// Parts that lie one behind the other in their unit are multiplied in one product, others one by one into their columns of y.
class Linear {
 public:
  // Each weight [O_i, I], or [I, O_i] as `weight_shape` says; y has O = Σ O_i columns. `biases` [O_i]: none, or one for each weight.
  Linear(const UnitStorage& units, const std::vector<ParameterId>& weights, const std::vector<ParameterId>& biases = {},
         WeightShape weight_shape = WeightShape::output_input);

  std::int64_t inputs() const { return inputs_; }    // I
  std::int64_t outputs() const { return outputs_; }  // O

  // y [N, O] = x [N, I] · Wᵀ + bias. Where the weight is row-parallel, y is a summand and one rank's has the bias.
  void forward(const LayerContext& context, const Tensor& y, const Tensor& x) const;
  // The same into `before`, and y [N, O] = gelu(before).
  void forward_gelu(const LayerContext& context, const Tensor& y, const Tensor& before, const Tensor& x) const;
  // The same into `gate_up`, and y [N, O / 2] = silu(gate) ∘ up.
  void forward_swiglu(const LayerContext& context, const Tensor& y, const Tensor& gate_up, const Tensor& x) const;
  // d_x [N, I] = d_y [N, O] · W.
  void backward_input(const LayerContext& context, const Tensor& d_x, const Tensor& d_y) const;
  // The same behind gelu(before) [N, I] as x: the gradient of `before`.
  void backward_input_gelu(const LayerContext& context, const Tensor& d_before, const Tensor& d_y, const Tensor& before) const;
  // The same behind silu(gate) ∘ up as x: the gradient of gate_up [N, 2 · I]. `room` [N, I] may be written.
  void backward_input_swiglu(const LayerContext& context, const Tensor& d_gate_up, const Tensor& room, const Tensor& d_y,
                             const Tensor& gate_up) const;
  // d_W += d_yᵀ · x and, unless somebody else adds it, d_bias += Σ over N of d_y, in fp32.
  void backward_weight(const LayerContext& context, const Tensor& d_y, const Tensor& x, bool biases = true) const;
  // The gradient [O] of all biases, to be added to, for one who does so; undefined where they do not lie together or do not train.
  Tensor bias_gradient(const LayerContext& context) const;

 private:
  // Consecutive weights that are contiguous in memory.
  struct Run {
    ParameterId first;
    std::int64_t begin = 0, outputs = 0;  // columns of y
    std::vector<ParameterId> others;      // behind the first
  };
  // Consecutive biases that are contiguous in memory.
  struct Bias {
    ParameterId first;
    std::int64_t begin = 0, outputs = 0;  // columns of y
    std::vector<ParameterId> others;      // behind the first
  };
  // One product and one bias.
  bool single() const { return runs_.size() == 1 && biases_.size() == 1 && runs_[0].outputs == biases_[0].outputs; }
  void add_bias(const UnitStorage& units, ParameterId bias, std::int64_t outputs);
  static Tensor joined(const Bias& bias, const Tensor& first);
  Tensor bias_gradient(const LayerContext& context, const Bias& bias) const;
  // The run's weight or gradient as an [O, I] matrix, however it is stored.
  ops::Matrix matrix(const Run& run, const Tensor& tensor) const;

  WeightShape weight_shape_;
  bool adds_bias_ = true;
  std::vector<Run> runs_;
  std::vector<Bias> biases_;
  std::int64_t inputs_ = 0, outputs_ = 0;
};

}  // namespace baleen
