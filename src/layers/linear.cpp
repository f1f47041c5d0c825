#include "layers/linear.h"

#include "ops/bias.h"

namespace baleen {
namespace {

using ops::Matrix;

// Columns [begin, begin + count) of y [N, O], whose rows stay O elements apart.
Tensor columns_of(const Tensor& y, std::int64_t begin, std::int64_t count) {
  const Matrix columns = Matrix(y).column_range(begin, count);
  return Tensor(columns.data, columns.dtype, {columns.rows, columns.columns});
}

}  // namespace

Linear::Linear(const UnitStorage& units, const std::vector<ParameterId>& weights, const std::vector<ParameterId>& biases, WeightShape weight_shape)
    : weight_shape_(weight_shape) {
  BALEEN_CHECK(biases.empty() || biases.size() == weights.size(), biases.size(), weights.size());
  std::size_t end = 0;  // where the current run ends in the unit, elements
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const ParameterId part = weights[i];
    const ParameterDescription& description = units.parameter(part);
    BALEEN_CHECK(description.shape.size() == 2, description.name);
    const bool by_output = weight_shape == WeightShape::output_input;
    const std::int64_t outputs = description.shape[by_output ? 0 : 1], inputs = description.shape[by_output ? 1 : 0];
    BALEEN_CHECK(i == 0 || inputs == inputs_, description.name, inputs, inputs_);
    inputs_ = inputs;
    const std::size_t begin = units.layout(part.unit).offset(part.index);
    if (by_output && !runs_.empty() && runs_.back().first.unit == part.unit && begin == end)
      runs_.back().outputs += outputs;
    else
      runs_.push_back({part, outputs_, outputs});
    if (!biases.empty()) {
      BALEEN_CHECK(units.parameter(biases[i]).elements() == outputs, units.parameter(biases[i]).name, outputs);
      biases_.push_back({biases[i], outputs_});
    }
    outputs_ += outputs;
    end = begin + static_cast<std::size_t>(description.elements());
  }
}

Matrix Linear::matrix(const Run& run, const Tensor& tensor) const {
  if (weight_shape_ == WeightShape::output_input) return Matrix(tensor.data(), tensor.dtype(), run.outputs, inputs_, inputs_);
  return Matrix(tensor.data(), tensor.dtype(), inputs_, run.outputs, run.outputs).transpose();
}

void Linear::forward(const LayerContext& context, const Tensor& y, const Tensor& x) const {
  for (const Run& run : runs_) {
    const Matrix weight = matrix(run, context.units.weight(run.first));
    ops::matmul(context.ops, Matrix(y).column_range(run.begin, run.outputs), x, weight.transpose());
  }
  for (const Bias& bias : biases_) {
    const Tensor values = context.units.weight(bias.id);
    ops::bias_add(context.ops, columns_of(y, bias.begin, values.elements()), outputs_, values);
  }
}

void Linear::backward_input(const LayerContext& context, const Tensor& d_x, const Tensor& d_y) const {
  bool accumulate = false;
  for (const Run& run : runs_) {
    const Matrix weight = matrix(run, context.units.weight(run.first));
    ops::matmul(context.ops, d_x, Matrix(d_y).column_range(run.begin, run.outputs), weight, accumulate);
    accumulate = true;
  }
}

void Linear::backward_weight(const LayerContext& context, const Tensor& d_y, const Tensor& x) const {
  for (const Run& run : runs_) {
    if (!context.units.parameter(run.first).trainable) continue;
    const Matrix d_weight = matrix(run, context.units.gradient(run.first));
    ops::matmul(context.ops, d_weight, Matrix(d_y).column_range(run.begin, run.outputs).transpose(), x, /*accumulate=*/true);
  }
  for (const Bias& bias : biases_) {
    if (!context.units.parameter(bias.id).trainable) continue;
    const Tensor gradient = context.units.gradient(bias.id);
    ops::bias_backward(context.ops, gradient, columns_of(d_y, bias.begin, gradient.elements()), outputs_);
  }
}

}  // namespace baleen
