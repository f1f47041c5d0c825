// Additions and conversions that no larger operation absorbs.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

namespace cpu {
void add(const Tensor& out, const Tensor& a, const Tensor& b);
void convert(const Tensor& out, const Tensor& in);
}  // namespace cpu
namespace gpu {
void add(Stream& stream, const Tensor& out, const Tensor& a, const Tensor& b);
}  // namespace gpu

// out = a + b, all of one shape and dtype; out may be a or b.
inline void add(Context& context, const Tensor& out, const Tensor& a, const Tensor& b) {
  dispatch(context, [&] { cpu::add(out, a, b); }, [&] { gpu::add(context.stream, out, a, b); });
}

// out = in, of one shape, each fp32 or bf16: to bf16 to nearest, ties to even, and NaN stays NaN.
inline void convert(Context& context, const Tensor& out, const Tensor& in) {
  dispatch(context, [&] { cpu::convert(out, in); });
}

}  // namespace baleen::ops
