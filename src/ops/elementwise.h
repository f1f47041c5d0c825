// Additions and scalings that no larger operation absorbs.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void add(const Tensor& out, const Tensor& a, const Tensor& b);
}  // namespace cpu
namespace gpu {
void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b);
}  // namespace gpu

// out = a + b, all of one shape and dtype; out may be a or b.
inline void add(Context& context, const Tensor& out, const Tensor& a, const Tensor& b) {
  dispatch(context, [&] { cpu::add(out, a, b); }, [&] { gpu::add(context.stream, out, a, b); });
}

}  // namespace baleen::ops
