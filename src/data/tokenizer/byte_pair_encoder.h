// Byte-pair encoding of one piece: start from its bytes and merge the adjacent pair whose merger has the lowest rank, the leftmost of
// equals, until no pair merges (R. Sennrich, B. Haddow, A. Birch, "Neural machine translation of rare words with subword units", 2016).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizer/token_table.h"

namespace baleen {

class BytePairEncoder {
 public:
  // Memory that encode() reuses from piece to piece; one a thread.
  struct Scratch {
    std::vector<std::int32_t> ids, ranks;       // of each live node: its token, and the rank of its merge with its right neighbour, or -1
    std::vector<std::uint32_t> previous, next;  // the live nodes as a list
    std::vector<std::uint64_t> heap;            // candidates: rank · 2³² + node
  };

  // Two tokens and what they become.
  struct Merge {
    std::int32_t left = 0, right = 0, merged = 0;
  };

  // `tokens`: id = rank, with every single byte among them. A piece that is a token stays whole, as in tiktoken.
  explicit BytePairEncoder(TokenTable tokens);
  // Merges by rank, the first of equal pairs counting. A byte that is no token is left out of what is encoded. `whole_pieces`: a piece that
  // is a token stays whole even where no merges lead to it (tokenizer.json's ignore_merges).
  BytePairEncoder(TokenTable tokens, std::span<const Merge> merges, bool whole_pieces);

  // Appends the ids of `piece` (fewer than 2³² bytes). O(n log n) in its length.
  void encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  const TokenTable& tokens() const { return tokens_; }

 private:
  struct Pair {
    std::uint64_t key = 0;   // left · 2³² + right
    std::int32_t rank = -1;  // -1: an empty slot
  };
  // The rank of the merge of two neighbouring tokens, or -1.
  std::int32_t rank_of(std::int32_t left, std::int32_t right) const;
  void find_bytes();
  void fill_pairs(std::span<const Pair> pairs);
  // Which tokens their own bytes merge to.
  void find_reachable();
  void merge_all(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void add_pairs_of(std::int32_t id, std::vector<Pair>& pairs) const;
  void encode_short(std::string_view piece, std::vector<std::int32_t>& ids) const;
  void encode_long(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  TokenTable tokens_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Pair> pairs_;           // a hash table with open addressing, at most half full
  std::vector<std::int32_t> merged_;  // by rank
  std::vector<std::uint8_t> whole_;   // by token: whether a piece with its bytes is it
};

}  // namespace baleen
