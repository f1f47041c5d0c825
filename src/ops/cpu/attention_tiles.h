// How the two halves of attention cut their work: tiles of queries against tiles of keys.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention.h"

namespace baleen::ops::cpu {

inline constexpr std::int64_t query_tile = 64, key_tile = 64;
inline constexpr std::int64_t most_head_dim = 256;

// Rows of packed tiles start at multiples of the widest vector, 16 floats, and are filled up with zeros.
inline std::int64_t padded_head_dim(std::int64_t head_dim) {
  return (head_dim + 15) / 16 * 16;
}

// One sequence and one query head, and the KV head it shares. Pointers stand at token 0 of the sequence.
struct QueryTile {
  std::int64_t first = 0, count = 0;             // queries [first, first + count)
  std::int64_t keys_begin = 0, keys_end = 0;     // whole key tiles outside are invisible to all of them
  std::int64_t latest_document = 0;              // the greatest document_begin among them, as an index into the keys
  const std::int32_t* document_begin = nullptr;  // of query `first`, or null
};

// `document_begin` [Tq] of the sequence or null.
inline QueryTile make_query_tile(const AttentionShape& shape, std::int64_t first, const std::int32_t* document_begin) {
  QueryTile tile;
  tile.first = first;
  tile.count = std::min(query_tile, shape.query_length - first);
  tile.keys_end = std::clamp<std::int64_t>(shape.query_offset + first + tile.count - shape.key_offset, 0, shape.key_length);
  if (document_begin != nullptr) {
    tile.document_begin = document_begin + first;
    const auto [least, greatest] = std::minmax_element(tile.document_begin, tile.document_begin + tile.count);
    tile.keys_begin = std::clamp<std::int64_t>(*least - shape.key_offset, 0, tile.keys_end) / key_tile * key_tile;
    tile.latest_document = *greatest - shape.key_offset;
  }
  return tile;
}

struct ForwardOffsets {
  std::int64_t out = 0, lse = 0, query = 0, key = 0;
};

// Checks what the pointers cannot say, and sets the default of key_batch_stride.
AttentionShape checked(AttentionShape shape);
AttentionShape checked(const AttentionShape& shape, const Tensor& document_begin);

}  // namespace baleen::ops::cpu
