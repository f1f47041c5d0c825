// The arithmetic of a reduction, one element type and operation at a time. Partial results travel in the "wire" type: the dtype itself,
// fp32 for bf16. Every element is combined on its own, so its bits depend neither on vector width nor on how a message is cut.
//
// f32, f64: a NaN on any rank gives NaN, also for max and min. i32 and u64 wrap around on overflow; their average is rounded towards zero.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace baleen {

struct Reducer {
  std::size_t element_bytes = 0, wire_bytes = 0;
  // wire = own: what the first rank of a slice's way sends.
  void (*load)(void* wire, const void* own, std::size_t count) = nullptr;
  // to = from ∘ own, both on the wire: what a rank on the way does.
  void (*combine)(void* to, const void* from, const void* own, std::size_t count) = nullptr;
  // result = from ∘ own, averaged over `size` ranks where the operation says so, rounded once to the dtype: the last rank. The result may
  // take own's place.
  void (*finish)(void* result, const void* from, const void* own, std::size_t count, int size) = nullptr;
};

// The dtype must be able to reduce (not u8).
Reducer reducer_for(DType dtype, ReduceOp op);

}  // namespace baleen
