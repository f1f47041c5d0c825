#include "optim/adamw_optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/hash.h"

namespace baleen {

AdamWOptimizer::AdamWOptimizer(AdamWConfig config, Device& device, UnitStorage& units)
    : config_(config), units_(units), scalars_(device.allocate("optimizer scalars", ops::adamw_scalars * sizeof(float))) {
  if (!units.options().offload) return;
  std::size_t largest = 0;
  for (int unit = 0; unit < units.units(); ++unit) largest = std::max(largest, units.updated(unit).size());
  staging_ = device.allocate("optimizer staging", (units.has_separate_master() ? 3 : 2) * largest * dtype_bytes(units.options().state));
}

AdamWOptimizer::States AdamWOptimizer::fetch(int unit, Stream& stream) const {
  States states{units_.master(unit), units_.exp_avg(unit), units_.exp_avg_sq(unit)};
  if (staging_.data() == nullptr) return states;
  auto* place = staging_.as<std::byte>();
  const auto bring = [&](Tensor& tensor) {
    if (tensor.elements() == 0) return;
    stream.copy(place, tensor.data(), tensor.bytes());
    tensor = Tensor(place, tensor.dtype(), {tensor.elements()});
    place += tensor.bytes();
  };
  if (units_.has_separate_master()) bring(states.master);  // else it is the weights, which are on the device
  bring(states.exp_avg);
  bring(states.exp_avg_sq);
  return states;
}

void AdamWOptimizer::give_back(int unit, const States& states, Stream& stream) const {
  if (staging_.data() == nullptr) return;
  const auto put = [&](const Tensor& to, const Tensor& from) {
    if (to.elements() > 0) stream.copy(to.data(), from.data(), to.bytes());
  };
  if (units_.has_separate_master()) put(units_.master(unit), states.master);
  put(units_.exp_avg(unit), states.exp_avg);
  put(units_.exp_avg_sq(unit), states.exp_avg_sq);
}

void AdamWOptimizer::step(ops::Context& context, std::int64_t step, double learning_rate, double gradient_factor) {
  std::array<float, ops::adamw_scalars> scalars{};
  scalars[ops::adamw_learning_rate] = static_cast<float>(learning_rate);
  scalars[ops::adamw_correction1] = static_cast<float>(1.0 - std::pow(config_.beta1, static_cast<double>(step)));
  scalars[ops::adamw_correction2] = static_cast<float>(1.0 - std::pow(config_.beta2, static_cast<double>(step)));
  scalars[ops::adamw_gradient_factor] = static_cast<float>(gradient_factor);
  scalars[ops::adamw_step] = static_cast<float>(step);
  context.stream.copy(scalars_.data(), scalars.data(), sizeof scalars);
  const Tensor step_scalars(scalars_.data(), DType::f32, {ops::adamw_scalars});
  ops::AdamWConstants constants{static_cast<float>(config_.beta1), static_cast<float>(config_.beta2), static_cast<float>(config_.eps), 0};
  for (int unit = 0; unit < units_.units(); ++unit) {
    const States states = fetch(unit, context.stream);
    for (int index = 0; index < static_cast<int>(units_.unit(unit).parameters.size()); ++index) {
      const ParameterId id{unit, index};
      const ParameterDescription& parameter = units_.parameter(id);
      const SliceRange range = units_.part(id, units_.updated(unit));
      if (!parameter.trainable || range.size() == 0) continue;
      constants.weight_decay = parameter.decays() ? static_cast<float>(config_.weight_decay) : 0.0f;
      const auto of = [&](const Tensor& flat) { return units_.of_updated(flat, id, range); };
      const Tensor weights = units_.has_separate_master() ? of(units_.updated_weights(unit)) : Tensor();
      ops::adamw(context, {of(states.master), weights, of(units_.updated_gradients(unit)), of(states.exp_avg), of(states.exp_avg_sq)}, step_scalars,
                 constants, {config_.seed, hash_bytes(parameter.name.data(), parameter.name.size()), range.begin});
    }
    give_back(unit, states, context.stream);
  }
}

}  // namespace baleen
