// The flat memory of all units on one rank: weights, gradients and optimizer state, as far as the rank holds them. Layers see parameters
// through it and keep no pointers, so that what lies behind a view can change owner, precision or place without a layer knowing.
//
// What a rank of `shards` holds of a unit's trainable elements (S. Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 5):
//   stage  weights          gradients          master weights and moments
//   0      all              all                all
//   1      all              all                its slice
//   2      all              its slice          its slice      full gradients only in a pool, one unit after another
//   3      its slice        its slice          its slice      and full weights likewise
// Master weights are memory of their own only where weights are computed with in another precision than they are kept in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "sharding/unit_layout.h"
#include "sharding/unit_pool.h"
#include "tensor/tensor.h"

namespace baleen {

enum class StorageKind {
  layout_only,  // no memory: for dry runs and plans
  inference,    // weights
  training,     // weights, gradients, master weights, exp_avg, exp_avg_sq
};

struct StorageOptions {
  StorageKind kind = StorageKind::training;
  DType compute = DType::f32;   // of the weights that layers read
  DType state = DType::f32;     // of master weights and moments
  DType gradient = DType::f32;  // of gradients, between ranks too
  int stage = 0;                // of ZeRO
  int shards = 1, shard = 0;
  bool offload = false;       // master weights and moments in host memory; the optimizer brings them over unit by unit
  bool keeps_chunks = false;  // of gathered weights, under a pipeline: see chunk_slots
  bool ends_share = false;    // the first and the last unit are never in use together (an untied head)
};

class UnitStorage {
 public:
  UnitStorage(Device& device, std::vector<UnitDescription> units, const StorageOptions& options);
  // Stage 0 in fp32, laid out for `shards`.
  UnitStorage(Device& device, std::vector<UnitDescription> units, int shards, StorageKind kind)
      : UnitStorage(device, std::move(units), StorageOptions{.kind = kind, .shards = shards}) {}

  const StorageOptions& options() const { return options_; }
  int stage() const { return options_.stage; }
  int units() const { return static_cast<int>(descriptions_.size()); }
  const UnitDescription& unit(int unit) const { return descriptions_[static_cast<std::size_t>(unit)]; }
  const UnitLayout& layout(int unit) const { return layouts_[static_cast<std::size_t>(unit)]; }
  const ParameterDescription& parameter(ParameterId id) const { return unit(id.unit).parameters[static_cast<std::size_t>(id.index)]; }
  // All parameters, unit by unit. The one named `name`; BALEEN_CHECK fails when there is none.
  std::vector<ParameterId> parameters() const;
  ParameterId find(std::string_view name) const;
  bool holds(std::string_view name) const;
  // Elements of what this rank's layout has.
  std::int64_t parameter_count() const;

  // Views in the shape that this rank holds of the parameter: the weight in the compute dtype, the gradient in the gradients' own. In
  // stages whose pool holds them they are valid between needed and done (unit_access.h).
  Tensor weight(ParameterId id) const;
  Tensor gradient(ParameterId id) const;

  // Ranges of a unit's elements: the slice of this shard; what this rank's optimizer updates (the slice, in stage 0 everything); all
  // weights that it keeps between steps are those, the frozen ones likewise, and in stages 0 to 2 everything.
  SliceRange slice(int unit) const { return layout(unit).slice(options_.shard); }
  SliceRange updated(int unit) const;
  bool keeps_whole_weights() const { return options_.stage < 3; }
  // The part of `range`, elements of the unit, that belongs to a parameter, in the parameter's own elements; empty: {0, 0}.
  SliceRange part(ParameterId id, SliceRange range) const;
  // Elements of a parameter whose weights this rank keeps.
  SliceRange kept(ParameterId id) const;

  // Flat memory. The first two: whole units of stages 0 to 2, and 0 to 1.
  Tensor flat_weights(int unit) const;
  Tensor flat_gradients(int unit) const;
  // [slice] of the gradients, in every stage; [updated] of the others. updated_weights is in the compute dtype and the same memory as
  // master where there is no master apart.
  Tensor slice_gradients(int unit) const;
  // All gradients of the unit, where the pool has them while they are used: stages 2 and 3.
  Tensor pool_gradients(int unit) const;
  Tensor updated_gradients(int unit) const;
  Tensor updated_weights(int unit) const;
  Tensor master(int unit) const;
  Tensor exp_avg(int unit) const;
  Tensor exp_avg_sq(int unit) const;
  bool has_separate_master() const { return options_.kind == StorageKind::training && options_.compute != options_.state; }
  // What stage 3 keeps of a unit's frozen weights, [frozen slice].
  Tensor frozen_slice_weights(int unit) const;

  // `flat` [updated] of the parameter's unit: the elements `range` of the parameter, which must lie in it.
  Tensor of_updated(const Tensor& flat, ParameterId id, SliceRange range) const;
  // The moments of a whole parameter; stage 0 only.
  Tensor exp_avg(ParameterId id) const;
  Tensor exp_avg_sq(ParameterId id) const;
  // The kept weights of a parameter, flat [kept], in the compute dtype.
  Tensor kept_weights(ParameterId id) const;

  // Sets the weights `range` of a parameter, which must be kept, wherever they are held: rounded for computing, exact in the master.
  void store(ParameterId id, SliceRange range, const float* values);
  // Gives fp32 values of the elements `range` of a parameter, out [range.size()].
  using ReadValues = std::function<void(SliceRange range, float* out)>;
  // Stores all kept weights of a parameter. `read` is called by all threads at once, on pieces that stay in a core's cache, with `out` the
  // weights' own memory where that is fp32 and in the host's reach. Throws what `read` throws.
  void fill(ParameterId id, const ReadValues& read);
  // Host values into memory of this storage, rounded to its dtype: what store uses, for moments too.
  void write(const Tensor& to, const float* values);
  // A tensor of this storage as the host can read it: itself, or a copy in `memory`. Work that writes it must be done.
  Tensor on_host(const Tensor& tensor, std::vector<std::byte>& memory) const;
  // Initial values: element i of a parameter depends on (seed, name, i) alone, so every layout starts from the same weights.
  void initialize_weights(std::uint64_t seed);
  // In fact, not only in name: stages 0 and 1.
  void zero_gradients(Stream& stream);

  // From begin_gradients on, the gradients of a unit are zeros to be added to, but they are not written at once: a product that is the
  // first to add to a gradient writes it instead, which saves a pass over the zeros and one over the sum. Whoever adds asks either
  // writes_first() and then writes all of the gradient, or takes gradient_to_add(). complete_gradients writes the zeros that are left.
  void begin_gradients(int unit, Stream& stream);
  bool writes_first(ParameterId id) const;
  Tensor gradient_to_add(Stream& stream, ParameterId id) const;
  void complete_gradients(int unit, Stream& stream) const;

  // Where full weights (stage 3) and full gradients (stages 2 and 3) of a unit are while they are used.
  UnitPool& weight_pool() { return weight_pool_; }
  UnitPool& gradient_pool() { return gradient_pool_; }
  // The memory of all units' weights and gradients, as far as the rank keeps them between uses.
  const Buffer& weight_buffer() const { return weights_; }
  const Buffer& gradient_buffer() const { return gradients_; }

 private:
  // What a rank holds of all units, in elements, and each unit's whole tensors, in bytes.
  struct Sizes {
    std::size_t weights = 0, gradients = 0, updated = 0;
    std::vector<std::size_t> whole_weights, whole_gradients;
  };
  void allocate(Device& device, const Sizes& sizes);
  Tensor shaped(ParameterId id, void* unit_begin, DType dtype) const;
  Tensor owned(const Buffer& buffer, int unit, DType dtype) const;
  bool host_can_read(const Tensor& tensor) const;
  void store_piece(ParameterId id, SliceRange range, const float* values);
  float* values_in_place(ParameterId id, SliceRange range) const;

  std::unique_ptr<Device> host_;  // of offloaded states, where the device is not the processor itself; outlives the buffers
  StorageOptions options_;
  std::vector<UnitDescription> descriptions_;
  std::vector<UnitLayout> layouts_;
  std::vector<std::vector<std::vector<std::int64_t>>> held_shapes_;  // by unit and parameter
  // First element of each unit in the buffers: of weights, of gradients and of what the optimizer updates.
  std::vector<std::size_t> weight_begin_, gradient_begin_, updated_begin_;
  Buffer weights_, gradients_, master_, exp_avg_, exp_avg_sq_;
  UnitPool weight_pool_, gradient_pool_;
  // Where the host cannot reach the memory: what carries values there, and where they are rounded before.
  std::unique_ptr<Stream> copies_;
  std::vector<std::byte> staging_;
  // By unit and parameter: whether nothing has been added to the gradient yet. Layers, which see a storage that does not change, note what
  // they add.
  mutable std::vector<std::vector<bool>> unwritten_;
};

// fp32 values into a tensor of fp32 or bf16 (rounded to nearest even) in host memory.
void store_floats(const Tensor& to, const float* values);

}  // namespace baleen
