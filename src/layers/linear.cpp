#include "layers/linear.h"

#include <algorithm>

#include "ops/bias.h"
#include "ops/matmul_gelu.h"
#include "ops/matmul_swiglu.h"

namespace baleen {
namespace {

using ops::Matrix;

// Columns [begin, begin + count) of y [N, O], whose rows stay O elements apart.
Tensor columns_of(const Tensor& y, std::int64_t begin, std::int64_t count) {
  const Matrix columns = Matrix(y).column_range(begin, count);
  return Tensor(columns.data, columns.dtype, {columns.rows, columns.columns});
}

// Of parameters that lie behind each other and are written together: all of them, or none.
bool all_write_first(const UnitStorage& units, ParameterId first, const std::vector<ParameterId>& others) {
  bool write = units.writes_first(first);
  for (const ParameterId other : others) write &= units.writes_first(other);
  return write;
}

}  // namespace

Linear::Linear(const UnitStorage& units, const std::vector<ParameterId>& weights, const std::vector<ParameterId>& biases,
               WeightShape weight_shape)
    : weight_shape_(weight_shape) {
  BALEEN_CHECK(biases.empty() || biases.size() == weights.size(), biases.size(), weights.size());
  std::size_t end = 0;  // where the current run ends in the unit, elements
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const ParameterId part = weights[i];
    const ParameterDescription& description = units.parameter(part);
    BALEEN_CHECK(description.shape.size() == 2, description.name);
    const bool by_output = weight_shape == WeightShape::output_input;
    const std::vector<std::int64_t> shape = description.held_shape();
    const std::int64_t outputs = shape[by_output ? 0 : 1], inputs = shape[by_output ? 1 : 0];
    BALEEN_CHECK(i == 0 || inputs == inputs_, description.name, inputs, inputs_);
    inputs_ = inputs;
    const std::size_t begin = units.layout(part.unit).offset(part.index);
    if (by_output && !runs_.empty() && runs_.back().first.unit == part.unit && begin == end)
      runs_.back().outputs += outputs, runs_.back().others.push_back(part);
    else
      runs_.push_back({part, outputs_, outputs, {}});
    if (!biases.empty()) add_bias(units, biases[i], outputs);
    outputs_ += outputs;
    end = begin + static_cast<std::size_t>(description.elements());
  }
}

void Linear::add_bias(const UnitStorage& units, ParameterId bias, std::int64_t outputs) {
  const ParameterDescription& description = units.parameter(bias);
  BALEEN_CHECK(description.elements() == outputs, description.name, outputs);
  if (description.split.dim < 0) adds_bias_ = description.held.counts;
  if (!biases_.empty()) {
    Bias& last = biases_.back();
    const std::size_t end = units.layout(last.first.unit).offset(last.first.index) + static_cast<std::size_t>(last.outputs);
    if (last.first.unit == bias.unit && end == units.layout(bias.unit).offset(bias.index) &&
        units.parameter(last.first).trainable == description.trainable) {
      last.outputs += outputs, last.others.push_back(bias);
      return;
    }
  }
  biases_.push_back({bias, outputs_, outputs, {}});
}

// The values of consecutive biases as one.
Tensor Linear::joined(const Bias& bias, const Tensor& first) {
  return Tensor(first.data(), first.dtype(), {bias.outputs});
}

Matrix Linear::matrix(const Run& run, const Tensor& tensor) const {
  if (weight_shape_ == WeightShape::output_input) return Matrix(tensor.data(), tensor.dtype(), run.outputs, inputs_, inputs_);
  return Matrix(tensor.data(), tensor.dtype(), inputs_, run.outputs, run.outputs).transpose();
}

void Linear::forward(const LayerContext& context, const Tensor& y, const Tensor& x) const {
  // Where weights and biases lie in the same runs, the product adds the bias.
  const bool together = std::ranges::equal(runs_, biases_, [](const Run& run, const Bias& bias) { return run.outputs == bias.outputs; });
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    const Run& run = runs_[i];
    const Matrix weight = matrix(run, context.units.weight(run.first)).transpose(), out = Matrix(y).column_range(run.begin, run.outputs);
    if (together && adds_bias_)
      ops::matmul_with_bias(context.ops, out, x, weight, joined(biases_[i], context.units.weight(biases_[i].first)));
    else
      ops::matmul(context.ops, out, x, weight);
  }
  if (together || !adds_bias_) return;
  for (const Bias& bias : biases_)
    ops::bias_add(context.ops, columns_of(y, bias.begin, bias.outputs), outputs_, joined(bias, context.units.weight(bias.first)));
}

void Linear::forward_gelu(const LayerContext& context, const Tensor& y, const Tensor& before, const Tensor& x) const {
  if (!single()) {
    forward(context, before, x);
    return ops::gelu_forward(context.ops, y, before);
  }
  const Matrix weight = matrix(runs_[0], context.units.weight(runs_[0].first)).transpose();
  ops::matmul_gelu(context.ops, y, before, x, weight, joined(biases_[0], context.units.weight(biases_[0].first)));
}

void Linear::forward_swiglu(const LayerContext& context, const Tensor& y, const Tensor& gate_up, const Tensor& x) const {
  if (runs_.size() != 1 || !biases_.empty()) {
    forward(context, gate_up, x);
    return ops::swiglu_forward(context.ops, y, gate_up);
  }
  ops::matmul_swiglu(context.ops, y, gate_up, x, matrix(runs_[0], context.units.weight(runs_[0].first)).transpose());
}

void Linear::backward_input_gelu(const LayerContext& context, const Tensor& d_before, const Tensor& d_y, const Tensor& before) const {
  if (runs_.size() != 1) {
    backward_input(context, d_before, d_y);
    return ops::gelu_backward(context.ops, d_before, d_before, before);
  }
  ops::matmul_gelu_backward(context.ops, d_before, d_y, matrix(runs_[0], context.units.weight(runs_[0].first)), before);
}

void Linear::backward_input_swiglu(const LayerContext& context, const Tensor& d_gate_up, const Tensor& room, const Tensor& d_y,
                                   const Tensor& gate_up) const {
  if (runs_.size() != 1) {
    backward_input(context, room, d_y);
    return ops::swiglu_backward(context.ops, d_gate_up, room, gate_up);
  }
  ops::matmul_swiglu_backward(context.ops, d_gate_up, room, d_y, matrix(runs_[0], context.units.weight(runs_[0].first)), gate_up);
}

void Linear::backward_input(const LayerContext& context, const Tensor& d_x, const Tensor& d_y) const {
  bool accumulate = false;
  for (const Run& run : runs_) {
    const Matrix weight = matrix(run, context.units.weight(run.first));
    ops::matmul(context.ops, d_x, Matrix(d_y).column_range(run.begin, run.outputs), weight, accumulate);
    accumulate = true;
  }
}

Tensor Linear::bias_gradient(const LayerContext& context, const Bias& bias) const {
  const Tensor d_bias = joined(bias, context.units.gradient(bias.first));
  if (all_write_first(context.units, bias.first, bias.others)) context.ops.stream.fill_zero(d_bias.data(), d_bias.bytes());
  return d_bias;
}

Tensor Linear::bias_gradient(const LayerContext& context) const {
  if (biases_.size() != 1 || biases_[0].outputs != outputs_ || !context.units.parameter(biases_[0].first).trainable) return Tensor();
  return bias_gradient(context, biases_[0]);
}

void Linear::backward_weight(const LayerContext& context, const Tensor& d_y, const Tensor& x, bool biases) const {
  for (const Run& run : runs_) {
    if (!context.units.parameter(run.first).trainable) continue;
    const Matrix d_weight = matrix(run, context.units.gradient(run.first));
    const bool writes = all_write_first(context.units, run.first, run.others);
    ops::matmul(context.ops, d_weight, Matrix(d_y).column_range(run.begin, run.outputs).transpose(), x, /*accumulate=*/!writes);
  }
  if (!biases) return;
  for (const Bias& bias : biases_)
    if (context.units.parameter(bias.first).trainable)
      ops::bias_backward(context.ops, bias_gradient(context, bias), columns_of(d_y, bias.begin, bias.outputs), outputs_);
}

}  // namespace baleen
