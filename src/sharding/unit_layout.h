// Where the parameters of a unit lie in its flat memory, and which slice of it each rank owns.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "comm/communicator.h"
#include "sharding/parameter.h"

namespace baleen {

// Offsets are in elements and the same for every dtype: parameters start at multiples of 128 elements (256 bytes of bf16), and the
// segment is padded to a multiple of 128 · shards, so that all slices are equal and collectives need no remainders. Padding is zero and
// stays zero. Frozen parameters lie behind the trainable ones, so that gradients and optimizer state cover a prefix. Of the trainable ones,
// those of which other ranks of axis tp hold copies lie together behind the others, so that copies are summed in one operation.
class UnitLayout {
 public:
  UnitLayout(const UnitDescription& unit, int shards);

  std::size_t offset(int index) const { return offsets_[static_cast<std::size_t>(index)]; }
  // Padded lengths of the whole segment and of its trainable prefix.
  std::size_t elements() const { return elements_; }
  std::size_t trainable_elements() const { return trainable_elements_; }
  // What shard `shard` owns of the trainable prefix, and of the frozen rest.
  SliceRange slice(int shard) const { return slice_of(trainable_elements_, shards_, shard); }
  SliceRange frozen_slice(int shard) const {
    const SliceRange range = slice_of(elements_ - trainable_elements_, shards_, shard);
    return {trainable_elements_ + range.begin, trainable_elements_ + range.end};
  }
  // The padding within the trainable prefix.
  const std::vector<SliceRange>& trainable_gaps() const { return gaps_; }
  // Trainable elements whose gradients are summed over the ranks of axis tp that hold them: over some of them, over all.
  SliceRange summed_over_some() const { return regions_[1]; }
  SliceRange summed_over_all() const { return regions_[2]; }
  // Trainable elements that this rank's norm counts: every element of the model is counted on one rank of tp and pp.
  const std::vector<SliceRange>& counted() const { return counted_; }

 private:
  int shards_;
  std::vector<std::size_t> offsets_;
  std::size_t elements_ = 0, trainable_elements_ = 0;
  // Without copies; with copies on some ranks of tp; on all, gradients summed; on all, gradients equal.
  std::array<SliceRange, 4> regions_;
  std::vector<SliceRange> counted_, gaps_;
};

}  // namespace baleen
