// Copies and sums of rows that lie apart: a part of each sequence, columns of a wider matrix.
#pragma once

#include "ops/context.h"

namespace baleen::ops {

// [batch, rows, columns] of an array: row r of sequence b begins b · batch_stride + r · row_stride elements after the tensor's first. The
// tensor's own shape says nothing; it is fp32 or bf16.
struct RowBlock {
  Tensor tensor;
  std::int64_t batch_stride = 0, row_stride = 0;
};
struct RowBlockShape {
  std::int64_t batch = 0, rows = 0, columns = 0;
};

namespace cpu {
void move_rows(const RowBlockShape& shape, const RowBlock& to, const RowBlock& from, bool add);
}  // namespace cpu
namespace gpu {
void move_rows(Stream& stream, const RowBlockShape& shape, const RowBlock& to, const RowBlock& from, bool add);
}  // namespace gpu

// to = from, converted to the dtype of `to` (to nearest, ties to even). The two must not overlap.
inline void copy_rows(Context& context, const RowBlockShape& shape, const RowBlock& to, const RowBlock& from) {
  dispatch(context, [&] { cpu::move_rows(shape, to, from, false); }, [&] { gpu::move_rows(context.stream, shape, to, from, false); });
}

// to += from, added in fp32 and rounded once to the dtype of `to`. The two must not overlap.
inline void add_rows(Context& context, const RowBlockShape& shape, const RowBlock& to, const RowBlock& from) {
  dispatch(context, [&] { cpu::move_rows(shape, to, from, true); }, [&] { gpu::move_rows(context.stream, shape, to, from, true); });
}

}  // namespace baleen::ops
