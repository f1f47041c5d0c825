// The flat memory of all units on one rank: weights, gradients and optimizer moments. Layers see parameters through it and keep no
// pointers, so that what lies behind a view can change owner, precision or place without a layer knowing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "sharding/unit_layout.h"
#include "tensor/tensor.h"

namespace baleen {

enum class StorageKind {
  layout_only,  // no memory: for dry runs and plans
  inference,    // weights
  training,     // weights, gradients, exp_avg, exp_avg_sq
};

class UnitStorage {
 public:
  UnitStorage(Device& device, std::vector<UnitDescription> units, int shards, StorageKind kind);

  int units() const { return static_cast<int>(descriptions_.size()); }
  const UnitDescription& unit(int unit) const { return descriptions_[static_cast<std::size_t>(unit)]; }
  const UnitLayout& layout(int unit) const { return layouts_[static_cast<std::size_t>(unit)]; }
  const ParameterDescription& parameter(ParameterId id) const { return unit(id.unit).parameters[static_cast<std::size_t>(id.index)]; }
  // All parameters, unit by unit. The one named `name`; BALEEN_CHECK fails when there is none.
  std::vector<ParameterId> parameters() const;
  ParameterId find(std::string_view name) const;
  std::int64_t parameter_count() const;

  // Views in the parameter's shape. Gradients are fp32.
  Tensor weight(ParameterId id) const;
  Tensor gradient(ParameterId id) const;
  Tensor exp_avg(ParameterId id) const;
  Tensor exp_avg_sq(ParameterId id) const;
  // The unit's whole segment [elements], and the trainable prefix of the others [trainable_elements].
  Tensor flat_weights(int unit) const;
  Tensor flat_gradients(int unit) const;
  Tensor flat_exp_avg(int unit) const;
  Tensor flat_exp_avg_sq(int unit) const;

  // Initial values: element i of a parameter depends on (seed, name, i) alone, so every layout starts from the same weights.
  void initialize_weights(std::uint64_t seed);
  void zero_gradients(Stream& stream);

 private:
  Tensor view(const Buffer& buffer, std::size_t unit_begin, ParameterId id) const;
  Tensor flat(const Buffer& buffer, std::size_t unit_begin, std::size_t elements) const;

  std::vector<UnitDescription> descriptions_;
  std::vector<UnitLayout> layouts_;
  std::vector<std::size_t> weight_begin_, trainable_begin_;  // first element of each unit in the buffers
  Buffer weights_, gradients_, exp_avg_, exp_avg_sq_;
};

}  // namespace baleen
