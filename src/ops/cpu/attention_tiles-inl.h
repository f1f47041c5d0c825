// Packing and masking shared by attention's forward and backward pass. Scores are kept transposed, a row a key and a lane a query: the
// softmax of a query then runs down a lane, without reductions across lanes, and each tile of keys is read as it lies in memory.
#if defined(BALEEN_OPS_CPU_ATTENTION_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BALEEN_OPS_CPU_ATTENTION_TILES_INL_H
#undef BALEEN_OPS_CPU_ATTENTION_TILES_INL_H
#else
#define BALEEN_OPS_CPU_ATTENTION_TILES_INL_H
#endif

#include <cmath>
#include <limits>

#include "ops/cpu/attention_tiles.h"
#include "ops/cpu/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace baleen::ops::cpu::HWY_NAMESPACE {

// to [rows, padded width] = from [rows, width] with zeros in the columns beyond.
template <class T>
void PackRows(std::int64_t rows, std::int64_t width, const T* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* to_row = to + row * to_stride;
    const T* from_row = from + row * from_stride;
    ForVectors(static_cast<std::size_t>(width),
               [&](std::size_t i, auto part) HWY_ATTR { StoreVec(LoadVec(from_row + i, part), to_row + i, part); });
    for (std::int64_t i = width; i < to_stride; ++i) to_row[i] = 0;
  }
}

#if HWY_TARGET != HWY_SCALAR
// to [4, 4], rows query_tile apart, = factor · the transpose of from [4, 4].
template <class T>
HWY_INLINE void PackFourByFour(float factor, const T* from, std::int64_t from_stride, float* to) {
  const hn::FixedTag<float, 4> d;
  const hn::RebindToUnsigned<decltype(d)> words;
  const hn::Rebind<std::uint16_t, decltype(d)> halves;
  const auto load = [&](const T* row) HWY_ATTR {
    if constexpr (std::is_same_v<T, BFloat16>)
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(words, hn::LoadU(halves, reinterpret_cast<const std::uint16_t*>(row)))));
    else
      return hn::LoadU(d, row);
  };
  const auto scale = hn::Set(d, factor);
  const auto r0 = load(from), r1 = load(from + from_stride), r2 = load(from + 2 * from_stride), r3 = load(from + 3 * from_stride);
  const auto s0 = hn::InterleaveLower(d, r0, r2), s1 = hn::InterleaveUpper(d, r0, r2), s2 = hn::InterleaveLower(d, r1, r3),
             s3 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::Mul(scale, hn::InterleaveLower(d, s0, s2)), d, to);
  hn::StoreU(hn::Mul(scale, hn::InterleaveUpper(d, s0, s2)), d, to + query_tile);
  hn::StoreU(hn::Mul(scale, hn::InterleaveLower(d, s1, s3)), d, to + 2 * query_tile);
  hn::StoreU(hn::Mul(scale, hn::InterleaveUpper(d, s1, s3)), d, to + 3 * query_tile);
}
#endif

// to [width, query_tile] = factor · the transpose of from [rows, width], zeros in the lanes beyond.
template <class T>
void PackTransposed(std::int64_t rows, std::int64_t width, float factor, const T* from, std::int64_t from_stride, float* to) {
  std::int64_t whole_rows = 0, whole_columns = 0;
#if HWY_TARGET != HWY_SCALAR
  whole_rows = rows / 4 * 4, whole_columns = width / 4 * 4;
  for (std::int64_t row = 0; row < whole_rows; row += 4)
    for (std::int64_t i = 0; i < whole_columns; i += 4)
      PackFourByFour(factor, from + row * from_stride + i, from_stride, to + i * query_tile + row);
#endif
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = row < whole_rows ? whole_columns : 0; i < width; ++i)
      to[i * query_tile + row] = factor * ToFloat(from[row * from_stride + i]);
  for (std::int64_t i = 0; i < width && rows < query_tile; ++i)
    for (std::int64_t row = rows; row < query_tile; ++row) to[i * query_tile + row] = 0;
}

// to [rows, width], `to_stride` apart, = factor · from [rows, padded width].
template <class T>
void UnpackScaled(std::int64_t rows, std::int64_t width, float factor, const float* from, T* to, std::int64_t to_stride) {
  const FloatTag d;
  const std::int64_t padded = padded_head_dim(width);
  for (std::int64_t row = 0; row < rows; ++row)
    ForVectors(static_cast<std::size_t>(width), [&](std::size_t i, auto part) HWY_ATTR {
      StoreVec(hn::Mul(hn::Load(d, from + row * padded + static_cast<std::int64_t>(i)), hn::Set(d, factor)), to + row * to_stride + i,
               part);
    });
}

// What a tile of queries has seen: the maximum of their scores, in units of log 2, Σ probability, and Σ probability · value [queries,
// padded D], relative to it. out [queries, D] and lse [queries] follow; a query that has seen no key has the output 0.
template <class T>
void FinishQueries(const AttentionShape& shape, std::int64_t queries, const float* greatest, const float* total, const float* sums, T* out,
                   float* lse) {
  constexpr double ln2 = 0.69314718055994530942;
  for (std::int64_t r = 0; r < queries; ++r) {
    lse[r] = total[r] == 0 ? -std::numeric_limits<float>::infinity()
                           : static_cast<float>(ln2 * (static_cast<double>(greatest[r]) + std::log2(static_cast<double>(total[r]))));
    UnpackScaled(1, shape.head_dim, total[r] == 0 ? 0.0f : 1.0f / total[r], sums + r * padded_head_dim(shape.head_dim),
                 out + r * shape.out_stride, shape.out_stride);
  }
}

// delta [queries] = Σ ∂out ∘ out, and the log-sum-exp in units of log 2, of queries whose ∂out and out lie in rows so far apart.
template <class T>
void QueryStatistics(std::int64_t queries, std::int64_t head_dim, const T* d_out, std::int64_t d_out_stride, const T* out,
                     std::int64_t out_stride, const float* lse, float* delta, float* lse_of_two) {
  constexpr float log2e = 1.44269504088896340736f;
  for (std::int64_t r = 0; r < queries; ++r) {
    FloatVec sum = hn::Zero(FloatTag());
    ForVectors(static_cast<std::size_t>(head_dim), [&](std::size_t i, auto part) HWY_ATTR {
      sum = Fma(LoadVec(d_out + r * d_out_stride + i, part), LoadVec(out + r * out_stride + i, part), sum);
    });
    delta[r] = SumLanes(sum);
    lse_of_two[r] = lse[r] * log2e;
  }
}

// Which of the keys [first_key, first_key + keys) of a tile the queries of a tile see. Query r sees key c when c <= r + shift, and when
// c is not before the document of r.
class TileMask {
 public:
  TileMask(const AttentionShape& shape, const QueryTile& queries, std::int64_t first_key, std::int64_t keys)
      : keys_(keys),
        shift_(shape.query_offset + queries.first - shape.key_offset - first_key),
        documents_(queries.document_begin != nullptr && queries.latest_document > first_key),
        first_key_position_(shape.key_offset + first_key),
        queries_(queries) {}

  std::int64_t shift() const { return shift_; }
  // The products' form of the causal mask: rows are keys and columns or k queries; or rows are queries and k keys.
  TileTrim scores() const { return {.n_begin = -shift_}; }
  TileTrim by_key() const { return {.k_begin = -shift_}; }
  TileTrim by_query() const { return {.k_end = shift_}; }

  // For the vector of queries that begins at `lane`: keys before open() need no mask; keys from closed() on are seen by none of them.
  std::int64_t open(std::int64_t lane) const { return documents_ ? 0 : HWY_MAX(std::int64_t{0}, HWY_MIN(lane + shift_ + 1, keys_)); }
  std::int64_t closed(std::int64_t lane) const {
    return HWY_MAX(std::int64_t{0}, HWY_MIN(lane + static_cast<std::int64_t>(hn::Lanes(FloatTag())) + shift_, keys_));
  }

  // The first and the last key that each of those queries sees, as floats (exact: they are clamped to the tile).
  struct Lanes {
    FloatVec first, last;
    HWY_INLINE auto sees(std::int64_t key) const {
      const FloatVec k = hn::Set(FloatTag(), static_cast<float>(key));
      return hn::And(hn::Le(first, k), hn::Ge(last, k));
    }
  };
  Lanes lanes(std::int64_t lane) const {
    const FloatTag d;
    const float shift = static_cast<float>(HWY_MAX(-2 * query_tile, HWY_MIN(shift_, 2 * key_tile)) + lane);
    const FloatVec last = hn::Iota(d, shift);
    if (!documents_) return {hn::Zero(d), last};
    HWY_ALIGN float first[HWY_MAX_BYTES / sizeof(float)];
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(hn::Lanes(d)); ++i) {
      const std::int64_t begin = lane + i < queries_.count ? queries_.document_begin[lane + i] - first_key_position_ : 0;
      first[i] = static_cast<float>(HWY_MAX(std::int64_t{0}, HWY_MIN(begin, key_tile)));
    }
    return {hn::Load(d, first), last};
  }

 private:
  std::int64_t keys_, shift_;
  bool documents_;
  std::int64_t first_key_position_;
  const QueryTile& queries_;
};

}  // namespace baleen::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
