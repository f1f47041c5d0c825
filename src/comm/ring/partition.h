// How the elements of an operation are divided over its ranks: consecutive slices of one length, the last ones short or empty.
#pragma once

#include <algorithm>
#include <cstddef>

#include "comm/communicator.h"

namespace baleen {

struct Partition {
  std::size_t count = 0;   // elements in all
  std::size_t length = 0;  // of a full slice
  int size = 1;            // slices

  SliceRange slice(int index) const {
    const std::size_t begin = std::min(static_cast<std::size_t>(index) * length, count);
    return {begin, std::min(begin + length, count)};
  }
  // Chunk `chunk` of slice `index` in pieces of `piece` elements; empty past the end.
  SliceRange chunk(int index, std::size_t chunk, std::size_t piece) const {
    const SliceRange whole = slice(index);
    const std::size_t begin = std::min(whole.begin + chunk * piece, whole.end);
    return {begin, std::min(begin + piece, whole.end)};
  }
  // Of an all_reduce (docs/architecture.md): a multiple of 128 elements a slice.
  static Partition of_all_reduce(std::size_t count, int size) {
    const auto parts = static_cast<std::size_t>(size);
    const std::size_t even = count / parts + (count % parts != 0);
    return {count, (even + slice_granularity - 1) / slice_granularity * slice_granularity, size};
  }
  // Of a reduce_scatter or all_gather of `each` elements a rank.
  static Partition of_equal_parts(std::size_t each, int size) { return {each * static_cast<std::size_t>(size), each, size}; }
};

}  // namespace baleen
