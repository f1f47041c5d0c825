#include "sharding/gradient_reduction.h"

#include "base/error.h"

namespace baleen {

GradientReduction::GradientReduction(Communicator& axis, UnitStorage& storage, ReduceOp op) : axis_(axis), storage_(storage), op_(op) {
  pending_.reserve(static_cast<std::size_t>(storage.units()));
}

GradientReduction::~GradientReduction() {
  if (pending_.empty()) return;
  axis_.abort("a training step ended before its gradients were reduced");
  for (const Event& event : pending_) {
    try {
      event.wait();
    } catch (const Error&) {  // the abort's own answer
    }
  }
}

void GradientReduction::reduce(int unit, Stream& compute) {
  if (axis_.size() == 1 || compute.measuring()) return;
  const Tensor gradients = storage_.flat_gradients(unit);
  pending_.push_back(axis_.all_reduce(gradients.data(), gradients.data(), static_cast<std::size_t>(gradients.elements()), DType::f32, op_,
                                      compute.record()));
}

void GradientReduction::wait(Stream& compute) {
  for (const Event& event : pending_) compute.wait(event);
  pending_.clear();
}

}  // namespace baleen
