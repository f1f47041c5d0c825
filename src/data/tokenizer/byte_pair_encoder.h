// Byte-pair encoding of one piece: start from its bytes and merge the adjacent pair whose merger has the lowest rank, the leftmost of
// equals, until no pair merges (R. Sennrich, B. Haddow, A. Birch, "Neural machine translation of rare words with subword units", 2016).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizer/token_table.h"

namespace baleen {

class BytePairEncoder {
 public:
  // Memory that encode() reuses from piece to piece; one a thread.
  struct Scratch {
    std::vector<std::int32_t> ids, merged;      // of each live node: its token, and what it and its right neighbour merge to, or -1
    std::vector<std::uint32_t> previous, next;  // the live nodes as a list
    std::vector<std::uint64_t> heap;            // candidates: rank · 2³² + node
  };

  // `tokens`: id = rank, with every single byte among them.
  explicit BytePairEncoder(TokenTable tokens);

  // Appends the ids of `piece` (fewer than 2³² bytes). O(n log n) in its length.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  const TokenTable& tokens() const { return tokens_; }

 private:
  struct Pair {
    std::uint64_t key = 0;     // left · 2³² + right
    std::int32_t merged = -1;  // -1: an empty slot
  };
  // What two neighbouring tokens merge to, or -1.
  std::int32_t merge_of(std::int32_t left, std::int32_t right) const;
  void add_pairs_of(std::int32_t id, std::vector<Pair>& pairs) const;
  void encode_short(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  TokenTable tokens_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Pair> pairs_;  // a hash table with open addressing, at most half full
};

}  // namespace baleen
