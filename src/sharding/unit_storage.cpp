#include "sharding/unit_storage.h"

#include "base/error.h"
#include "base/rng.h"

namespace baleen {

UnitStorage::UnitStorage(Device& device, std::vector<UnitDescription> units, int shards, StorageKind kind)
    : descriptions_(std::move(units)) {
  std::size_t all = 0, trainable = 0;
  for (const UnitDescription& unit : descriptions_) {
    layouts_.emplace_back(unit, shards);
    weight_begin_.push_back(all);
    trainable_begin_.push_back(trainable);
    all += layouts_.back().elements();
    trainable += layouts_.back().trainable_elements();
  }
  if (kind == StorageKind::layout_only) return;
  weights_ = device.allocate("weights", all * sizeof(float));
  if (kind != StorageKind::training) return;
  gradients_ = device.allocate("gradients", trainable * sizeof(float));
  exp_avg_ = device.allocate("optimizer exp_avg", trainable * sizeof(float));
  exp_avg_sq_ = device.allocate("optimizer exp_avg_sq", trainable * sizeof(float));
}

std::vector<ParameterId> UnitStorage::parameters() const {
  std::vector<ParameterId> all;
  for (int unit = 0; unit < units(); ++unit)
    for (int index = 0; index < static_cast<int>(descriptions_[static_cast<std::size_t>(unit)].parameters.size()); ++index)
      all.push_back({unit, index});
  return all;
}

ParameterId UnitStorage::find(std::string_view name) const {
  for (const ParameterId id : parameters())
    if (parameter(id).name == name) return id;
  BALEEN_CHECK(false, "no parameter named", name);
  return {};
}

std::int64_t UnitStorage::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterId id : parameters()) count += parameter(id).elements();
  return count;
}

Tensor UnitStorage::view(const Buffer& buffer, std::size_t unit_begin, ParameterId id) const {
  const ParameterDescription& description = parameter(id);
  const Tensor all = flat(buffer, unit_begin + layout(id.unit).offset(id.index), static_cast<std::size_t>(description.elements()));
  const auto& shape = description.shape;
  BALEEN_CHECK(shape.size() == 1 || shape.size() == 2, shape.size());
  return shape.size() == 1 ? all : all.reshape({shape[0], shape[1]});
}

Tensor UnitStorage::flat(const Buffer& buffer, std::size_t unit_begin, std::size_t elements) const {
  float* data = buffer.data() == nullptr ? nullptr : buffer.as<float>() + unit_begin;
  return Tensor(data, DType::f32, {static_cast<std::int64_t>(elements)});
}

Tensor UnitStorage::weight(ParameterId id) const { return view(weights_, weight_begin_[static_cast<std::size_t>(id.unit)], id); }
Tensor UnitStorage::gradient(ParameterId id) const { return view(gradients_, trainable_begin_[static_cast<std::size_t>(id.unit)], id); }
Tensor UnitStorage::exp_avg(ParameterId id) const { return view(exp_avg_, trainable_begin_[static_cast<std::size_t>(id.unit)], id); }
Tensor UnitStorage::exp_avg_sq(ParameterId id) const { return view(exp_avg_sq_, trainable_begin_[static_cast<std::size_t>(id.unit)], id); }

Tensor UnitStorage::flat_weights(int unit) const { return flat(weights_, weight_begin_[static_cast<std::size_t>(unit)], layout(unit).elements()); }
Tensor UnitStorage::flat_gradients(int unit) const {
  return flat(gradients_, trainable_begin_[static_cast<std::size_t>(unit)], layout(unit).trainable_elements());
}
Tensor UnitStorage::flat_exp_avg(int unit) const {
  return flat(exp_avg_, trainable_begin_[static_cast<std::size_t>(unit)], layout(unit).trainable_elements());
}
Tensor UnitStorage::flat_exp_avg_sq(int unit) const {
  return flat(exp_avg_sq_, trainable_begin_[static_cast<std::size_t>(unit)], layout(unit).trainable_elements());
}

void UnitStorage::initialize_weights(std::uint64_t seed) {
  for (const ParameterId id : parameters()) {
    const ParameterDescription& description = parameter(id);
    const Philox philox(derive_key(seed, description.name));
    const Tensor tensor = weight(id);
    float* values = tensor.as<float>();
    const std::int64_t count = tensor.elements();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      switch (description.initializer) {
        case Initializer::zeros: values[i] = 0.0f; break;
        case Initializer::ones: values[i] = 1.0f; break;
        case Initializer::normal: values[i] = description.standard_deviation * normal_at(philox, static_cast<std::uint64_t>(i)); break;
      }
    }
  }
}

void UnitStorage::zero_gradients(Stream& stream) { stream.fill_zero(gradients_.data(), gradients_.bytes()); }

}  // namespace baleen
