#include "ops/gpu/kernel.cuh"
#include "ops/row_blocks.h"

namespace baleen::ops::gpu {
namespace {

constexpr int threads = 256;

template <class To, class From>
__global__ void move_elements(RowBlockShape shape, To* to, std::int64_t to_batch, std::int64_t to_row, const From* from,
                              std::int64_t from_batch, std::int64_t from_row, bool add) {
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (element >= shape.batch * shape.rows * shape.columns) return;
  const std::int64_t column = element % shape.columns, row = element / shape.columns % shape.rows, b = element / shape.columns / shape.rows;
  To* const out = to + b * to_batch + row * to_row + column;
  const float value = as_float(from[b * from_batch + row * from_row + column]);
  *out = rounded<To>(add ? as_float(*out) + value : value);
}

}  // namespace

void move_rows(Stream& stream, const RowBlockShape& shape, const RowBlock& to, const RowBlock& from, bool add) {
  const std::int64_t count = shape.batch * shape.rows * shape.columns;
  if (count == 0) return;
  for_element_type(to.tensor.dtype(), "moving rows", [&](auto to_zero) {
    for_element_type(from.tensor.dtype(), "moving rows", [&](auto from_zero) {
      using To = decltype(to_zero);
      using From = decltype(from_zero);
      move_elements<To, From><<<blocks_for(count, threads), threads, 0, native_stream(stream)>>>(
          shape, to.tensor.as<To>(), to.batch_stride, to.row_stride, from.tensor.as<From>(), from.batch_stride, from.row_stride, add);
    });
  });
  check_launch("moving rows");
}

}  // namespace baleen::ops::gpu
