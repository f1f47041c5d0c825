// Products of small matrices that lie in the caches: the building block of attention, whose tiles never reach a library call's size.
#if defined(BALEEN_OPS_CPU_TILE_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_TILE_PRODUCT_INL_H
#undef BALEEN_OPS_CPU_TILE_PRODUCT_INL_H
#else
#define BALEEN_OPS_CPU_TILE_PRODUCT_INL_H
#endif

#include "ops/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// c [M, N] = or += a [M, K] · b [K, N]. Element (m, k) of a is a[m · row + k · column], so a transposed a is a swap of the two. b and c are
// row-major and N counts whole vectors: their rows must have room for that.
struct TileOperand {
  const float* data;
  std::int64_t row, column;
};

// Where a triangular mask leaves zeros, whole blocks need not be computed. For the block of rows that begins at m, with `rows` of them,
// only k in [m + k_begin, m + rows + k_end) and columns from m + n_begin on count. Columns before that are left as they were.
struct TileTrim {
  static constexpr std::int64_t none = std::int64_t{1} << 40;
  std::int64_t k_begin = -none, k_end = none, n_begin = -none;
};

// kRows · kVectors sums in registers: 6 · 2 of AVX2's 16, with two for b and one for a.
template <int kRows, int kVectors, bool kAccumulate>
HWY_INLINE void TileBlock(std::int64_t depth, const float* HWY_RESTRICT a, std::int64_t a_row, std::int64_t a_column,
                          const float* HWY_RESTRICT b, std::int64_t b_row, float* HWY_RESTRICT c, std::int64_t c_row) {
  const FloatTag d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  FloatVec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) sums[m][n] = kAccumulate ? hn::LoadU(d, c + m * c_row + n * lanes) : hn::Zero(d);
  for (std::int64_t k = 0; k < depth; ++k, a += a_column, b += b_row) {
    FloatVec right[kVectors];
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) right[n] = hn::LoadU(d, b + n * lanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const FloatVec left = hn::Set(d, a[m * a_row]);
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) sums[m][n] = hn::MulAdd(left, right[n], sums[m][n]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) hn::StoreU(sums[m][n], d, c + m * c_row + n * lanes);
}

// All columns from n_begin on of one block of rows.
template <int kRows, bool kAccumulate>
void TileRows(std::int64_t n_begin, std::int64_t n_end, std::int64_t depth, const float* a, std::int64_t a_row, std::int64_t a_column,
              const float* b, std::int64_t b_row, float* c, std::int64_t c_row) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(FloatTag()));
  std::int64_t n = n_begin / lanes * lanes;
  for (; n + 2 * lanes <= n_end; n += 2 * lanes) TileBlock<kRows, 2, kAccumulate>(depth, a, a_row, a_column, b + n, b_row, c + n, c_row);
  if (n < n_end) TileBlock<kRows, 1, kAccumulate>(depth, a, a_row, a_column, b + n, b_row, c + n, c_row);
}

template <bool kAccumulate>
void TileProduct(std::int64_t rows, std::int64_t columns, std::int64_t depth, TileOperand a, const float* b, std::int64_t b_row, float* c,
                 std::int64_t c_row, TileTrim trim = {}) {
  constexpr std::int64_t block = 6;
  for (std::int64_t m = 0; m < rows; m += block) {
    const std::int64_t count = HWY_MIN(block, rows - m);
    const std::int64_t k_begin = HWY_MAX(std::int64_t{0}, m + trim.k_begin), k_end = HWY_MIN(depth, m + count + trim.k_end);
    const std::int64_t n_begin = HWY_MAX(std::int64_t{0}, m + trim.n_begin), k_count = HWY_MAX(std::int64_t{0}, k_end - k_begin);
    if (kAccumulate && k_count == 0) continue;
    const float* a_block = a.data + m * a.row + k_begin * a.column;
    const float* b_block = b + k_begin * b_row;
    float* c_block = c + m * c_row;
    const auto run = [&](auto rows_of_block) HWY_ATTR {
      TileRows<decltype(rows_of_block)::value, kAccumulate>(n_begin, columns, k_count, a_block, a.row, a.column, b_block, b_row, c_block,
                                                            c_row);
    };
    switch (count) {
      case 6: run(std::integral_constant<int, 6>()); break;
      case 5: run(std::integral_constant<int, 5>()); break;
      case 4: run(std::integral_constant<int, 4>()); break;
      case 3: run(std::integral_constant<int, 3>()); break;
      case 2: run(std::integral_constant<int, 2>()); break;
      default: run(std::integral_constant<int, 1>()); break;
    }
  }
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
