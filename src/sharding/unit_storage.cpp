#include "sharding/unit_storage.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/parallel_tasks.h"
#include "base/rng.h"
#include "device/host_memory.h"
#include "ops/elementwise.h"

namespace baleen {
namespace {

std::byte* at_element(const Buffer& buffer, std::size_t element, DType dtype) {
  return buffer.data() == nullptr ? nullptr : buffer.as<std::byte>() + element * dtype_bytes(dtype);
}

Tensor flat_tensor(void* data, std::size_t elements, DType dtype) {
  return Tensor(data, dtype, {static_cast<std::int64_t>(elements)});
}

SliceRange intersection(SliceRange a, SliceRange b) {
  const std::size_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin < end ? SliceRange{begin, end} : SliceRange{};
}

// What is kept of a model has the same size for every batch.
[[noreturn]] void advise_on_model_memory(const Error& error) {
  if (error.code() != ExitCode::out_of_memory) throw error;
  throw Error(error.code(), error.what_is_wrong(), error.where(),
              "use a smaller model, or more ranks that divide it among them: ZeRO-3, tensor or pipeline parallelism");
}

}  // namespace

UnitStorage::UnitStorage(Device& device, std::vector<UnitDescription> units, const StorageOptions& options)
    : options_(options), descriptions_(std::move(units)) {
  Sizes sizes;
  for (int u = 0; u < static_cast<int>(descriptions_.size()); ++u) {
    layouts_.emplace_back(descriptions_[static_cast<std::size_t>(u)], options.shards);
    auto& shapes = held_shapes_.emplace_back();
    for (const ParameterDescription& parameter : unit(u).parameters) {
      shapes.push_back(parameter.held_shape());
      BALEEN_CHECK(shapes.back().size() == 1 || shapes.back().size() == 2, parameter.name, shapes.back().size());
    }
    const UnitLayout& layout = layouts_.back();
    weight_begin_.push_back(sizes.weights);
    unwritten_.emplace_back(unit(u).parameters.size(), false);
    gradient_begin_.push_back(sizes.gradients);
    updated_begin_.push_back(sizes.updated);
    sizes.weights += keeps_whole_weights() ? layout.elements() : slice(u).size() + layout.frozen_slice(options.shard).size();
    sizes.gradients += options.stage < 2 ? layout.trainable_elements() : slice(u).size();
    sizes.updated += updated(u).size();
    sizes.whole_weights.push_back(layout.elements() * dtype_bytes(options.compute));
    sizes.whole_gradients.push_back(layout.trainable_elements() * dtype_bytes(options.gradient));
  }
  if (options.kind == StorageKind::layout_only) return;
  if (device.kind() == DeviceKind::gpu) copies_ = device.create_stream();
  try {
    allocate(device, sizes);
  } catch (const Error& error) {
    advise_on_model_memory(error);
  }
}

void UnitStorage::allocate(Device& device, const Sizes& sizes) {
  const auto compute_bytes = dtype_bytes(options_.compute), state_bytes = dtype_bytes(options_.state);
  // Stage 0 sends no weights: they may lie in memory of this rank's own, where there are huge pages.
  weights_ = options_.stage == 0 ? device.allocate("weights", sizes.weights * compute_bytes)
                                 : device.allocate_shared("weights", sizes.weights * compute_bytes);
  const std::vector<int> slots = pool_slots(descriptions_, options_.ends_share);
  if (options_.stage == 3)
    weight_pool_ = UnitPool(device, "weights pool", sizes.whole_weights, options_.keeps_chunks ? chunk_slots(descriptions_) : slots);
  if (options_.kind != StorageKind::training) return;
  gradients_ = device.allocate_shared("gradients", sizes.gradients * dtype_bytes(options_.gradient));
  if (options_.stage >= 2) gradient_pool_ = UnitPool(device, "gradients pool", sizes.whole_gradients, slots);
  if (options_.offload && device.kind() == DeviceKind::gpu) host_ = create_host_memory(device);
  Device& states = host_ != nullptr ? *host_ : device;
  if (has_separate_master()) master_ = states.allocate("master weights", sizes.updated * state_bytes);
  exp_avg_ = states.allocate("optimizer exp_avg", sizes.updated * state_bytes);
  exp_avg_sq_ = states.allocate("optimizer exp_avg_sq", sizes.updated * state_bytes);
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

bool UnitStorage::holds(std::string_view name) const {
  for (const ParameterId id : parameters())
    if (parameter(id).name == name) return true;
  return false;
}

SliceRange UnitStorage::updated(int unit) const {
  return options_.stage == 0 ? SliceRange{0, layout(unit).trainable_elements()} : slice(unit);
}

SliceRange UnitStorage::part(ParameterId id, SliceRange range) const {
  const std::size_t offset = layout(id.unit).offset(id.index);
  const SliceRange common = intersection(range, {offset, offset + static_cast<std::size_t>(parameter(id).elements())});
  return common.size() == 0 ? SliceRange{} : SliceRange{common.begin - offset, common.end - offset};
}

SliceRange UnitStorage::kept(ParameterId id) const {
  if (keeps_whole_weights()) return {0, static_cast<std::size_t>(parameter(id).elements())};
  return part(id, parameter(id).trainable ? slice(id.unit) : layout(id.unit).frozen_slice(options_.shard));
}

Tensor UnitStorage::shaped(ParameterId id, void* unit_begin, DType dtype) const {
  void* data =
      unit_begin == nullptr ? nullptr : static_cast<std::byte*>(unit_begin) + layout(id.unit).offset(id.index) * dtype_bytes(dtype);
  const auto& shape = held_shapes_[static_cast<std::size_t>(id.unit)][static_cast<std::size_t>(id.index)];
  return shape.size() == 1 ? Tensor(data, dtype, {shape[0]}) : Tensor(data, dtype, {shape[0], shape[1]});
}

Tensor UnitStorage::weight(ParameterId id) const {
  if (options_.kind == StorageKind::layout_only) return shaped(id, nullptr, options_.compute);
  if (keeps_whole_weights()) return shaped(id, flat_weights(id.unit).data(), options_.compute);
  BALEEN_CHECK(weight_pool_.holds(id.unit), "weights used without having been gathered", parameter(id).name);
  return shaped(id, weight_pool_.memory(id.unit), options_.compute);
}

Tensor UnitStorage::gradient(ParameterId id) const {
  if (options_.kind != StorageKind::training) return shaped(id, nullptr, options_.gradient);
  if (options_.stage < 2) return shaped(id, flat_gradients(id.unit).data(), options_.gradient);
  BALEEN_CHECK(gradient_pool_.holds(id.unit), "gradients without memory", parameter(id).name);
  return shaped(id, gradient_pool_.memory(id.unit), options_.gradient);
}

Tensor UnitStorage::flat_weights(int unit) const {
  BALEEN_CHECK(keeps_whole_weights(), options_.stage);
  return flat_tensor(at_element(weights_, weight_begin_[static_cast<std::size_t>(unit)], options_.compute), layout(unit).elements(),
                     options_.compute);
}

Tensor UnitStorage::flat_gradients(int unit) const {
  BALEEN_CHECK(options_.stage < 2, options_.stage);
  return flat_tensor(at_element(gradients_, gradient_begin_[static_cast<std::size_t>(unit)], options_.gradient),
                     layout(unit).trainable_elements(), options_.gradient);
}

Tensor UnitStorage::slice_gradients(int unit) const {
  const SliceRange range = slice(unit);
  if (options_.stage < 2) return flat_gradients(unit).rows(static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size()));
  return flat_tensor(at_element(gradients_, gradient_begin_[static_cast<std::size_t>(unit)], options_.gradient), range.size(),
                     options_.gradient);
}

Tensor UnitStorage::pool_gradients(int unit) const {
  BALEEN_CHECK(options_.stage >= 2, options_.stage);
  return flat_tensor(gradient_pool_.memory(unit), layout(unit).trainable_elements(), options_.gradient);
}

Tensor UnitStorage::updated_gradients(int unit) const {
  return options_.stage == 0 ? flat_gradients(unit) : slice_gradients(unit);
}

Tensor UnitStorage::updated_weights(int unit) const {
  const SliceRange range = updated(unit);
  const std::size_t begin = weight_begin_[static_cast<std::size_t>(unit)] + (keeps_whole_weights() ? range.begin : 0);
  return flat_tensor(at_element(weights_, begin, options_.compute), range.size(), options_.compute);
}

Tensor UnitStorage::frozen_slice_weights(int unit) const {
  BALEEN_CHECK(!keeps_whole_weights(), options_.stage);
  const std::size_t begin = weight_begin_[static_cast<std::size_t>(unit)] + slice(unit).size();
  return flat_tensor(at_element(weights_, begin, options_.compute), layout(unit).frozen_slice(options_.shard).size(), options_.compute);
}

Tensor UnitStorage::owned(const Buffer& buffer, int unit, DType dtype) const {
  return flat_tensor(at_element(buffer, updated_begin_[static_cast<std::size_t>(unit)], dtype), updated(unit).size(), dtype);
}
Tensor UnitStorage::master(int unit) const {
  return has_separate_master() ? owned(master_, unit, options_.state) : updated_weights(unit);
}
Tensor UnitStorage::exp_avg(int unit) const {
  return owned(exp_avg_, unit, options_.state);
}
Tensor UnitStorage::exp_avg_sq(int unit) const {
  return owned(exp_avg_sq_, unit, options_.state);
}

Tensor UnitStorage::of_updated(const Tensor& flat, ParameterId id, SliceRange range) const {
  if (range.size() == 0) return flat.rows(0, 0);
  const std::size_t begin = layout(id.unit).offset(id.index) + range.begin - updated(id.unit).begin;
  return flat.rows(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(range.size()));
}

Tensor UnitStorage::exp_avg(ParameterId id) const {
  BALEEN_CHECK(options_.stage == 0, options_.stage);
  return shaped(id, exp_avg(id.unit).data(), options_.state);
}
Tensor UnitStorage::exp_avg_sq(ParameterId id) const {
  BALEEN_CHECK(options_.stage == 0, options_.stage);
  return shaped(id, exp_avg_sq(id.unit).data(), options_.state);
}

Tensor UnitStorage::kept_weights(ParameterId id) const {
  const SliceRange range = kept(id);
  if (keeps_whole_weights()) return weight(id).reshape({static_cast<std::int64_t>(range.size())});
  if (parameter(id).trainable) return of_updated(updated_weights(id.unit), id, range);
  const std::size_t begin = layout(id.unit).offset(id.index) + range.begin - layout(id.unit).frozen_slice(options_.shard).begin;
  return frozen_slice_weights(id.unit).rows(static_cast<std::int64_t>(range.size() == 0 ? 0 : begin),
                                            static_cast<std::int64_t>(range.size()));
}

void store_floats(const Tensor& to, const float* values) {
  if (to.elements() == 0 || to.data() == values) return;
  ops::cpu::convert(to, Tensor(const_cast<float*>(values), DType::f32, {to.elements()}));  // which only reads them
}

void UnitStorage::store(ParameterId id, SliceRange range, const float* values) {
  weight_pool_.clear();  // copies there are out of date
  store_piece(id, range, values);
}

void UnitStorage::store_piece(ParameterId id, SliceRange range, const float* values) {
  const SliceRange all = kept(id);
  BALEEN_CHECK(range.begin >= all.begin && range.end <= all.end, parameter(id).name, range.begin, range.end);
  write(kept_weights(id).rows(static_cast<std::int64_t>(range.begin - all.begin), static_cast<std::int64_t>(range.size())), values);
  if (!has_separate_master() || !parameter(id).trainable) return;
  const SliceRange mine = intersection(range, part(id, updated(id.unit)));
  if (mine.size() > 0) write(of_updated(master(id.unit), id, mine), values + (mine.begin - range.begin));
}

// The master, or the weights, of these elements where that is fp32 that the host can write; else nullptr.
float* UnitStorage::values_in_place(ParameterId id, SliceRange range) const {
  const SliceRange all = kept(id), mine = intersection(range, part(id, updated(id.unit)));
  const bool in_master = has_separate_master() && parameter(id).trainable && mine.size() == range.size();
  const Tensor place =
      in_master ? of_updated(master(id.unit), id, range)
                : kept_weights(id).rows(static_cast<std::int64_t>(range.begin - all.begin), static_cast<std::int64_t>(range.size()));
  return place.dtype() == DType::f32 && host_can_read(place) ? place.as<float>() : nullptr;
}

void UnitStorage::fill(ParameterId id, const ReadValues& read) {
  constexpr std::size_t piece = std::size_t{1} << 16;  // elements
  const SliceRange all = kept(id);
  const auto pieces = static_cast<std::int64_t>((all.size() + piece - 1) / piece);
  weight_pool_.clear();
  std::mutex copying;
  std::vector<std::vector<float>> memories(static_cast<std::size_t>(omp_get_max_threads()));
  parallel_tasks(pieces, [&](std::int64_t task, int thread) {
    const std::size_t begin = all.begin + static_cast<std::size_t>(task) * piece;
    const SliceRange range{begin, std::min(begin + piece, all.end)};
    float* values = values_in_place(id, range);
    if (values == nullptr) {
      std::vector<float>& memory = memories[static_cast<std::size_t>(thread)];
      memory.resize(piece);
      values = memory.data();
    }
    read(range, values);
    const auto one_at_a_time = copies_ == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(copying);
    store_piece(id, range, values);
  });
}

void UnitStorage::write(const Tensor& to, const float* values) {
  if (host_can_read(to)) return store_floats(to, values);
  staging_.resize(to.bytes());
  store_floats(Tensor(staging_.data(), to.dtype(), {to.elements()}), values);
  copies_->copy(to.data(), staging_.data(), to.bytes());
  copies_->synchronize();
}

bool UnitStorage::host_can_read(const Tensor& tensor) const {
  if (copies_ == nullptr) return true;
  const auto inside = [&](const Buffer& buffer) {
    const auto* const begin = buffer.as<std::byte>();
    return tensor.data() >= begin && tensor.data() < begin + buffer.bytes();
  };
  return host_ != nullptr && (inside(master_) || inside(exp_avg_) || inside(exp_avg_sq_));
}

Tensor UnitStorage::on_host(const Tensor& tensor, std::vector<std::byte>& memory) const {
  if (host_can_read(tensor)) return tensor;
  memory.resize(tensor.bytes());
  copies_->copy(memory.data(), tensor.data(), tensor.bytes());
  copies_->synchronize();
  return Tensor(memory.data(), tensor.dtype(), {tensor.elements()});
}

void UnitStorage::initialize_weights(std::uint64_t seed) {
  for (const ParameterId id : parameters()) {
    const ParameterDescription& description = parameter(id);
    const Philox philox(derive_key(seed, description.name));
    fill(id, [&](SliceRange range, float* out) {
      switch (description.initializer) {
        case Initializer::zeros: std::fill_n(out, range.size(), 0.0f); break;
        case Initializer::ones: std::fill_n(out, range.size(), 1.0f); break;
        case Initializer::normal:
          description.for_each_run(range, [&](std::size_t held, std::size_t global, std::size_t run) {
            float* const to = out + (held - range.begin);
            for (std::size_t i = 0; i < run; ++i) to[i] = description.standard_deviation * normal_at(philox, global + i);
          });
          break;
      }
    });
  }
}

void UnitStorage::zero_gradients(Stream& stream) {
  BALEEN_CHECK(options_.stage < 2, options_.stage);
  stream.fill_zero(gradients_.data(), gradients_.bytes());
  for (std::vector<bool>& unit : unwritten_) unit.assign(unit.size(), false);
}

void UnitStorage::begin_gradients(int unit, Stream& stream) {
  const auto index = static_cast<std::size_t>(unit);
  for (std::size_t i = 0; i < unwritten_[index].size(); ++i) unwritten_[index][i] = descriptions_[index].parameters[i].trainable;
  if (options_.stage < 2) return;
  // Of another unit there may be something between the parameters, where nothing is ever added.
  for (const SliceRange gap : layout(unit).trainable_gaps()) {
    const Tensor between = pool_gradients(unit).rows(static_cast<std::int64_t>(gap.begin), static_cast<std::int64_t>(gap.size()));
    stream.fill_zero(between.data(), between.bytes());
  }
}

bool UnitStorage::writes_first(ParameterId id) const {
  std::vector<bool>& unit = unwritten_[static_cast<std::size_t>(id.unit)];
  const bool unwritten = unit[static_cast<std::size_t>(id.index)];
  unit[static_cast<std::size_t>(id.index)] = false;
  return unwritten;
}

Tensor UnitStorage::gradient_to_add(Stream& stream, ParameterId id) const {
  const Tensor out = gradient(id);
  if (writes_first(id)) stream.fill_zero(out.data(), out.bytes());
  return out;
}

void UnitStorage::complete_gradients(int unit, Stream& stream) const {
  for (int index = 0; index < static_cast<int>(descriptions_[static_cast<std::size_t>(unit)].parameters.size()); ++index)
    if (parameter({unit, index}).trainable) gradient_to_add(stream, {unit, index});
}

}  // namespace baleen
