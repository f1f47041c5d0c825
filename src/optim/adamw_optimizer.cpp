#include "optim/adamw_optimizer.h"

#include <cmath>

#include "base/hash.h"
#include "device/host_memory.h"

namespace baleen {

AdamWOptimizer::AdamWOptimizer(AdamWConfig config, Device& device, UnitStorage& units)
    : config_(config),
      units_(units),
      scalars_(device.allocate("optimizer scalars", ops::adamw_scalars * sizeof(float))),
      host_(create_host_memory(device)),
      host_scalars_(host_->allocate("optimizer scalars", slots * ops::adamw_scalars * sizeof(float))) {
  if (units.options().offload) offloaded_ = std::make_unique<OffloadedStates>(device, units);
}

void AdamWOptimizer::begin_step(Stream& compute, std::int64_t step, double learning_rate) {
  const std::size_t slot = steps_begun_++ % slots;
  copied_[slot].wait();
  float* const scalars = host_scalars_.as<float>() + slot * ops::adamw_scalars;
  scalars[ops::adamw_learning_rate] = static_cast<float>(learning_rate);
  scalars[ops::adamw_correction1] = static_cast<float>(1.0 - std::pow(config_.beta1, static_cast<double>(step)));
  scalars[ops::adamw_correction2] = static_cast<float>(1.0 - std::pow(config_.beta2, static_cast<double>(step)));
  scalars[ops::adamw_gradient_factor] = 1;
  scalars[ops::adamw_step] = static_cast<float>(step);
  // Whether updates are skipped lies behind them and stays.
  static_assert(ops::adamw_step + 1 == ops::adamw_skip);
  compute.copy(scalars_.data(), scalars, ops::adamw_skip * sizeof(float));
  copied_[slot] = compute.record();
}

void AdamWOptimizer::update(ops::Context& context) {
  if (offloaded_ != nullptr) {
    offloaded_->for_each(context.stream, [&](const StatesPiece& piece) { update_piece(context, piece); });
    return;
  }
  for (int unit = 0; unit < units_.units(); ++unit)
    update_piece(context, {unit, units_.updated(unit), units_.master(unit), units_.exp_avg(unit), units_.exp_avg_sq(unit)});
}

void AdamWOptimizer::update_piece(ops::Context& context, const StatesPiece& piece) {
  ops::AdamWConstants constants{static_cast<float>(config_.beta1), static_cast<float>(config_.beta2), static_cast<float>(config_.eps), 0};
  for (int index = 0; index < static_cast<int>(units_.unit(piece.unit).parameters.size()); ++index) {
    const ParameterId id{piece.unit, index};
    const ParameterDescription& parameter = units_.parameter(id);
    const SliceRange range = units_.part(id, piece.range);
    if (!parameter.trainable || range.size() == 0) continue;
    constants.weight_decay = parameter.decays() ? static_cast<float>(config_.weight_decay) : 0.0f;
    const auto begin = static_cast<std::int64_t>(units_.layout(id.unit).offset(index) + range.begin - piece.range.begin);
    const auto of_piece = [&](const Tensor& states) { return states.rows(begin, static_cast<std::int64_t>(range.size())); };
    const auto of_unit = [&](const Tensor& flat) { return units_.of_updated(flat, id, range); };
    const Tensor weights = units_.has_separate_master() ? of_unit(units_.updated_weights(id.unit)) : Tensor();
    ops::adamw(
        context,
        {of_piece(piece.master), weights, of_unit(units_.updated_gradients(id.unit)), of_piece(piece.exp_avg), of_piece(piece.exp_avg_sq)},
        scalars(), constants, {config_.seed, hash_bytes(parameter.name.data(), parameter.name.size()), range.begin});
  }
}

}  // namespace baleen
