#include "optim/adamw_optimizer.h"

#include <array>
#include <cmath>

#include "base/hash.h"

namespace baleen {

AdamWOptimizer::AdamWOptimizer(AdamWConfig config, Device& device, UnitStorage& units)
    : config_(config), units_(units), scalars_(device.allocate("optimizer scalars", ops::adamw_scalars * sizeof(float))) {}

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
  for (const ParameterId id : units_.parameters()) {
    const ParameterDescription& parameter = units_.parameter(id);
    if (!parameter.trainable) continue;
    const SliceRange range = units_.part(id, units_.updated(id.unit));
    if (range.size() == 0) continue;
    constants.weight_decay = parameter.decays() ? static_cast<float>(config_.weight_decay) : 0.0f;
    const auto of = [&](const Tensor& flat) { return units_.of_updated(flat, id, range); };
    const Tensor weights = units_.has_separate_master() ? of(units_.updated_weights(id.unit)) : Tensor();
    ops::adamw(context,
               {of(units_.master(id.unit)), weights, of(units_.updated_gradients(id.unit)), of(units_.exp_avg(id.unit)), of(units_.exp_avg_sq(id.unit))},
               step_scalars, constants, {config_.seed, hash_bytes(parameter.name.data(), parameter.name.size()), range.begin});
  }
}

}  // namespace baleen
