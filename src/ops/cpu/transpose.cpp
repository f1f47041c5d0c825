#include "ops/cpu/transpose.h"

#include "ops/cpu/prefetch.h"
#include "ops/cpu/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/transpose.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements are words of 16 or 32 bits. A tile has `across` columns, as many as 16 bytes hold, and as many rows as a vector has words: a
// cache line's worth with AVX-512. Blocks of 64 bytes of 32 rows stay in the first-level cache until both tiles' directions are done with
// them.
constexpr std::int64_t block = 32;

template <class Word>
HWY_INLINE void TransposeAny(Word* to, std::int64_t to_stride, const Word* from, std::int64_t from_stride, std::int64_t rows,
                             std::int64_t columns) {
  for (std::int64_t column = 0; column < columns; ++column)
    for (std::int64_t row = 0; row < rows; ++row) to[column * to_stride + row] = from[row * from_stride + column];
}

#if HWY_TARGET == HWY_SCALAR
template <class Word>
HWY_INLINE std::int64_t TileRows() {
  return 1;
}
template <class Word>
constexpr std::int64_t across = 1;
template <class Word>
HWY_INLINE void TransposeTile(Word* to, std::int64_t, const Word* from, std::int64_t) {
  *to = *from;
}
#else
template <class Word>
constexpr std::int64_t across = 16 / sizeof(Word);
template <class Word>
using TileTag = hn::CappedTag<Word, 64 / sizeof(Word)>;
template <class Word>
HWY_INLINE std::int64_t TileRows() {
  return static_cast<std::int64_t>(hn::Lanes(TileTag<Word>()));
}

// 16 bytes of each of the rows that lie `across` rows apart, one a 16-byte block of the vector.
template <class D, class Word>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const Word* from, std::int64_t stride) {
  if constexpr (hn::MaxLanes(D()) * sizeof(Word) == 16) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    const std::int64_t upper = static_cast<std::int64_t>(hn::Lanes(half));
    return hn::Combine(d, LoadBlocks(half, from + upper * stride, stride), LoadBlocks(half, from, stride));
  }
}

// Rounds of shuffling rows i and i + across / 2 together, as a deck of cards, leave columns.
HWY_INLINE void TransposeTile(std::uint16_t* to, std::int64_t to_stride, const std::uint16_t* from, std::int64_t s) {
  const TileTag<std::uint16_t> d;
  using Row = hn::Vec<decltype(d)>;
  Row r0 = LoadBlocks(d, from, s), r1 = LoadBlocks(d, from + s, s), r2 = LoadBlocks(d, from + 2 * s, s),
      r3 = LoadBlocks(d, from + 3 * s, s), r4 = LoadBlocks(d, from + 4 * s, s), r5 = LoadBlocks(d, from + 5 * s, s),
      r6 = LoadBlocks(d, from + 6 * s, s), r7 = LoadBlocks(d, from + 7 * s, s);
  for (int round = 0; round < 3; ++round) {
    const Row s0 = hn::InterleaveLower(d, r0, r4), s1 = hn::InterleaveUpper(d, r0, r4), s2 = hn::InterleaveLower(d, r1, r5),
              s3 = hn::InterleaveUpper(d, r1, r5), s4 = hn::InterleaveLower(d, r2, r6), s5 = hn::InterleaveUpper(d, r2, r6),
              s6 = hn::InterleaveLower(d, r3, r7), s7 = hn::InterleaveUpper(d, r3, r7);
    r0 = s0, r1 = s1, r2 = s2, r3 = s3, r4 = s4, r5 = s5, r6 = s6, r7 = s7;
  }
  hn::StoreU(r0, d, to), hn::StoreU(r1, d, to + to_stride), hn::StoreU(r2, d, to + 2 * to_stride), hn::StoreU(r3, d, to + 3 * to_stride);
  hn::StoreU(r4, d, to + 4 * to_stride), hn::StoreU(r5, d, to + 5 * to_stride), hn::StoreU(r6, d, to + 6 * to_stride),
      hn::StoreU(r7, d, to + 7 * to_stride);
}
HWY_INLINE void TransposeTile(std::uint32_t* to, std::int64_t to_stride, const std::uint32_t* from, std::int64_t s) {
  const TileTag<std::uint32_t> d;
  using Row = hn::Vec<decltype(d)>;
  Row r0 = LoadBlocks(d, from, s), r1 = LoadBlocks(d, from + s, s), r2 = LoadBlocks(d, from + 2 * s, s),
      r3 = LoadBlocks(d, from + 3 * s, s);
  for (int round = 0; round < 2; ++round) {
    const Row s0 = hn::InterleaveLower(d, r0, r2), s1 = hn::InterleaveUpper(d, r0, r2), s2 = hn::InterleaveLower(d, r1, r3),
              s3 = hn::InterleaveUpper(d, r1, r3);
    r0 = s0, r1 = s1, r2 = s2, r3 = s3;
  }
  hn::StoreU(r0, d, to), hn::StoreU(r1, d, to + to_stride), hn::StoreU(r2, d, to + 2 * to_stride), hn::StoreU(r3, d, to + 3 * to_stride);
}
#endif

template <class Word>
HWY_INLINE void TransposeWords(const Matrix& to, const Matrix& from) {
  auto* const out = static_cast<Word*>(to.data);
  const auto* const in = static_cast<const Word*>(from.data);
  const std::int64_t tile_rows = TileRows<Word>(), columns_of_block = 64 / sizeof(Word);
  for (std::int64_t top = 0; top < from.rows; top += block)  // along rows, which may be far apart
    for (std::int64_t left = 0; left < from.columns; left += columns_of_block) {
      for (std::int64_t row = top + block; row < HWY_MIN(top + 2 * block, from.rows); ++row) prefetch(in + row * from.stride + left);
      const std::int64_t right = HWY_MIN(left + columns_of_block, from.columns), bottom = HWY_MIN(top + block, from.rows);
      for (std::int64_t column = left; column < right; column += across<Word>)
        for (std::int64_t row = top; row < bottom; row += tile_rows) {
          Word* const at = out + column * to.stride + row;
          const Word* const source = in + row * from.stride + column;
          if (column + across<Word> <= right && row + tile_rows <= bottom)
            TransposeTile(at, to.stride, source, from.stride);
          else
            TransposeAny(at, to.stride, source, from.stride, HWY_MIN(tile_rows, bottom - row), HWY_MIN(across<Word>, right - column));
        }
    }
}

void TransposeMatrix(const Matrix& to, const Matrix& from) {
  if (from.dtype == DType::bf16)
    TransposeWords<std::uint16_t>(to, from);
  else
    TransposeWords<std::uint32_t>(to, from);
}

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace baleen::ops::cpu {

HWY_EXPORT(TransposeMatrix);

void transpose_copy(const Matrix& to, const Matrix& from) {
  BALEEN_CHECK(to.rows == from.columns && to.columns == from.rows && to.dtype == from.dtype && !to.transposed && !from.transposed, to.rows,
               to.columns, from.rows, from.columns);
  HWY_DYNAMIC_DISPATCH(TransposeMatrix)(to, from);
}

}  // namespace baleen::ops::cpu
#endif  // HWY_ONCE
