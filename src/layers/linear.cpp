#include "layers/linear.h"

#include "ops/matmul.h"

namespace baleen {

using ops::Matrix;

Linear::Linear(const UnitStorage& units, std::vector<ParameterId> parts) {
  std::size_t end = 0;  // where the current run ends in the unit, elements
  for (const ParameterId part : parts) {
    const ParameterDescription& description = units.parameter(part);
    BALEEN_CHECK(description.shape.size() == 2, description.name);
    const std::int64_t rows = description.shape[0];
    const std::size_t begin = units.layout(part.unit).offset(part.index);
    inputs_ = description.shape[1];
    if (!runs_.empty() && runs_.back().first.unit == part.unit && begin == end)
      runs_.back().rows += rows;
    else
      runs_.push_back({part, outputs_, rows});
    outputs_ += rows;
    end = begin + static_cast<std::size_t>(description.elements());
  }
}

void Linear::forward(const LayerContext& context, const Tensor& y, const Tensor& x) const {
  for (const Run& run : runs_) {
    const Tensor w = context.units.weight(run.first);
    const Matrix weight(w.data(), w.dtype(), run.rows, inputs_, inputs_);
    ops::matmul(context.ops, Matrix(y).column_range(run.begin, run.rows), x, weight.transpose());
  }
}

void Linear::backward_input(const LayerContext& context, const Tensor& d_x, const Tensor& d_y) const {
  bool accumulate = false;
  for (const Run& run : runs_) {
    const Tensor w = context.units.weight(run.first);
    const Matrix weight(w.data(), w.dtype(), run.rows, inputs_, inputs_);
    ops::matmul(context.ops, d_x, Matrix(d_y).column_range(run.begin, run.rows), weight, accumulate);
    accumulate = true;
  }
}

void Linear::backward_weight(const LayerContext& context, const Tensor& d_y, const Tensor& x) const {
  for (const Run& run : runs_) {
    if (!context.units.parameter(run.first).trainable) continue;
    const Tensor gradient = context.units.gradient(run.first);
    const Matrix d_weight(gradient.data(), gradient.dtype(), run.rows, inputs_, inputs_);
    ops::matmul(context.ops, d_weight, Matrix(d_y).column_range(run.begin, run.rows).transpose(), x, /*accumulate=*/true);
  }
}

}  // namespace baleen
