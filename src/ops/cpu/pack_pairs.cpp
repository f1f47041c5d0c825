#include "ops/cpu/pack_pairs.h"

#include <cstring>

#include "ops/cpu/matrix_tiles.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/prefetch.h"
#include "ops/cpu/transpose.h"

#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/pack_pairs.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

namespace baleen::ops::cpu {
#ifndef BALEEN_OPS_CPU_PACK_PAIRS_ONCE
#define BALEEN_OPS_CPU_PACK_PAIRS_ONCE

constexpr std::int64_t panel = 64, row_grain = 32;

#endif
}  // namespace baleen::ops::cpu

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows `stride` elements apart, two by two, into `panels` panels that lie to_stride elements apart: along rows, as they are read soonest.
void InterleavePairs(const std::uint16_t* from, std::int64_t stride, std::int64_t pairs, std::int64_t panels, std::uint16_t* to,
                     std::int64_t to_stride) {
  const hn::CappedTag<std::uint16_t, 32> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t pair = 0; pair < pairs; ++pair, from += 2 * stride, to += 2 * panel)
    for (std::int64_t i = 0; i < panels; ++i)
      for (std::int64_t j = 0; j < panel; j += lanes)
        hn::StoreInterleaved2(hn::LoadU(d, from + i * panel + j), hn::LoadU(d, from + stride + i * panel + j), d,
                              to + i * to_stride + 2 * j);
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(InterleavePairs);

namespace {

const std::uint16_t* element(const Matrix& b, std::int64_t row, std::int64_t column) {
  const auto* const from = static_cast<const std::uint16_t*>(b.data);
  return from + (b.transposed ? column * b.stride + row : row * b.stride + column);
}

// Rows [begin, rows of b) of `columns` columns, one by one.
void pack_rest(std::uint16_t* to, const Matrix& b, std::int64_t begin, std::int64_t column, std::int64_t columns) {
  for (std::int64_t row = begin; row < rows_of(b); ++row)
    for (std::int64_t i = 0; i < columns; ++i) to[row / 2 * 2 * panel + 2 * i + row % 2] = *element(b, row, column + i);
}

// Brings a matrix that is stored as it is; rows of up to a kilobyte or so, which the processor alone does not foresee.
void prefetch_rows(const std::uint16_t* from, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  constexpr std::int64_t line = 64 / sizeof(std::uint16_t);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t column = 0; column < columns; column += line) prefetch(from + row * stride + column);
}

// Columns [column, column + columns) into panels of `padded` rows; all panels are whole, or there is one.
void pack_panels(std::uint16_t* to, const Matrix& b, std::int64_t column, std::int64_t columns, std::int64_t padded) {
  const std::int64_t pairs = rows_of(b) / 2, panel_size = padded * panel;
  const std::uint16_t* const from = element(b, 0, column);
  // A pair of a transposed b is a word, and words are transposed where they begin at addresses of words.
  const bool words = b.transposed && b.stride % 2 == 0 && reinterpret_cast<std::uintptr_t>(from) % 4 == 0;
  if (!b.transposed && columns % panel == 0) HWY_DYNAMIC_DISPATCH(InterleavePairs)(from, b.stride, pairs, columns / panel, to, panel_size);
  for (std::int64_t begin = 0; begin < columns; begin += panel, to += panel_size) {
    const std::int64_t size = std::min(panel, columns - begin), packed = !words && (b.transposed || size < panel) ? 0 : 2 * pairs;
    if (size < panel) std::memset(to, 0, static_cast<std::size_t>(panel_size) * sizeof *to);
    std::memset(to + 2 * pairs * panel, 0, static_cast<std::size_t>((padded - 2 * pairs) * panel) * sizeof *to);
    if (words) {
      if (begin + panel < columns)
        prefetch_rows(from + (begin + panel) * b.stride, std::min(panel, columns - begin - panel), 2 * pairs, b.stride);
      transpose_copy(Matrix(to, DType::f32, pairs, size, panel), Matrix(const_cast<std::uint16_t*>(from + begin * b.stride), DType::f32,
                                                                        size, pairs, b.stride / 2));  // NOLINT: is read
    }
    pack_rest(to, b, packed, column + begin, size);
  }
}

}  // namespace

void pack_pairs(void* to, const Matrix& b) {
  BALEEN_CHECK(b.dtype == DType::bf16, dtype_name(b.dtype));
  const std::int64_t columns = columns_of(b), padded = (rows_of(b) + row_grain - 1) / row_grain * row_grain;
  parallel_ranges((columns + panel - 1) / panel, 1, worthwhile_rows(panel * padded), [&](std::int64_t begin, std::int64_t end) {
    auto* const panels = static_cast<std::uint16_t*>(to);
    const std::int64_t whole = std::min(end, columns / panel);
    if (begin < whole) pack_panels(panels + begin * padded * panel, b, begin * panel, (whole - begin) * panel, padded);
    if (whole < end) pack_panels(panels + whole * padded * panel, b, whole * panel, columns - whole * panel, padded);
  });
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
