#include "data/tokenizer/byte_pair_encoder.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace baleen {
namespace {

constexpr std::size_t short_piece = 64;  // up to here scanning an array on the stack is faster than a heap

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

// Fibonacci hashing: the upper bits of a product with 2⁶⁴ / golden ratio. Both halves of the key reach them.
std::size_t slot_for(std::uint64_t key, std::size_t slots) {
  const std::uint64_t mixed = (key ^ key >> 29) * 0x9E3779B97F4A7C15ull;
  return static_cast<std::size_t>((mixed ^ mixed >> 32) & (slots - 1));
}

}  // namespace

BytePairEncoder::BytePairEncoder(TokenTable tokens) : tokens_(std::move(tokens)) {
  find_bytes();
  for (int value = 0; value < 256; ++value) BALEEN_CHECK(byte_ids_[static_cast<std::size_t>(value)] >= 0, "byte", value);
  // A rank belongs to a byte string, so a pair merges when its concatenation is a token: every way to cut a token in two tokens.
  std::vector<Pair> pairs;
  for (std::int32_t id = 0; id < tokens_.size(); ++id) add_pairs_of(id, pairs);
  fill_pairs(pairs);
  merged_.resize(static_cast<std::size_t>(tokens_.size()));
  std::iota(merged_.begin(), merged_.end(), 0);
  whole_.assign(merged_.size(), 1);
}

BytePairEncoder::BytePairEncoder(TokenTable tokens, std::span<const Merge> merges, bool whole_pieces) : tokens_(std::move(tokens)) {
  find_bytes();
  std::vector<Pair> pairs;
  for (const Merge& merge : merges) {
    pairs.push_back({pair_key(merge.left, merge.right), static_cast<std::int32_t>(merged_.size())});
    merged_.push_back(merge.merged);
  }
  fill_pairs(pairs);
  whole_.assign(static_cast<std::size_t>(tokens_.size()), whole_pieces ? 1 : 0);
  if (!whole_pieces) find_reachable();
}

void BytePairEncoder::find_bytes() {
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    byte_ids_[static_cast<std::size_t>(value)] = tokens_.find({&byte, 1});
  }
}

void BytePairEncoder::fill_pairs(std::span<const Pair> pairs) {
  pairs_.resize(std::bit_ceil(2 * pairs.size() + 2));
  for (const Pair& pair : pairs) {
    std::size_t slot = slot_for(pair.key, pairs_.size());
    while (pairs_[slot].rank >= 0 && pairs_[slot].key != pair.key) slot = (slot + 1) & (pairs_.size() - 1);
    if (pairs_[slot].rank < 0) pairs_[slot] = pair;
  }
}

void BytePairEncoder::find_reachable() {
  Scratch scratch;
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokens_.size(); ++id) {
    ids.clear();
    if (!tokens_.bytes(id).empty()) merge_all(tokens_.bytes(id), scratch, ids);
    whole_[static_cast<std::size_t>(id)] = ids.size() == 1 && ids[0] == id ? 1 : 0;
  }
}

void BytePairEncoder::add_pairs_of(std::int32_t id, std::vector<Pair>& pairs) const {
  const std::string_view whole = tokens_.bytes(id);
  for (std::size_t cut = 1; cut < whole.size(); ++cut) {
    const std::int32_t left = tokens_.find(whole.substr(0, cut));
    const std::int32_t right = left < 0 ? -1 : tokens_.find(whole.substr(cut));
    if (right >= 0) pairs.push_back({pair_key(left, right), id});
  }
}

std::int32_t BytePairEncoder::rank_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t slot = slot_for(key, pairs_.size());
  while (pairs_[slot].rank >= 0 && pairs_[slot].key != key) slot = (slot + 1) & (pairs_.size() - 1);
  return pairs_[slot].rank;
}

void BytePairEncoder::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  if (const std::int32_t whole = tokens_.find(piece); whole >= 0 && whole_[static_cast<std::size_t>(whole)] != 0)
    ids.push_back(whole);  // most pieces of ordinary text
  else
    merge_all(piece, scratch, ids);
}

void BytePairEncoder::merge_all(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (piece.size() <= short_piece)
    encode_short(piece, ids);
  else
    encode_long(piece, scratch, ids);
}

void BytePairEncoder::encode_short(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, short_piece> token, rank;  // rank[i]: of the merge of token[i] and token[i + 1], or -1
  std::size_t count = 0;
  for (const char byte : piece)
    if (const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)]; id >= 0) token[count++] = id;
  for (std::size_t i = 0; i + 1 < count; ++i) rank[i] = rank_of(token[i], token[i + 1]);
  while (count > 1) {
    std::size_t best = count;
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (rank[i] >= 0 && (best == count || rank[i] < rank[best])) best = i;
    if (best == count) break;
    token[best] = merged_[static_cast<std::size_t>(rank[best])];
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      token[i] = token[i + 1];
      rank[i] = rank[i + 1];
    }
    --count;
    if (best + 1 < count) rank[best] = rank_of(token[best], token[best + 1]);
    if (best > 0) rank[best - 1] = rank_of(token[best - 1], token[best]);
  }
  ids.insert(ids.end(), token.begin(), token.begin() + static_cast<std::ptrdiff_t>(count));
}

void BytePairEncoder::encode_long(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  BALEEN_CHECK(piece.size() < 0xffffffffu, "bytes", piece.size());
  auto& [token, ranks, previous, next, heap] = scratch;
  token.clear();
  for (const char byte : piece)
    if (const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)]; id >= 0) token.push_back(id);
  const auto count = static_cast<std::uint32_t>(token.size());
  if (count == 0) return;
  ranks.resize(count);
  previous.resize(count);
  next.resize(count);
  heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;  // unused for node 0, which stays first
    next[i] = i + 1;      // count: the end
  }
  // Sets the rank of the merge of a node and its neighbour; a candidate already in the heap is stale when it says otherwise.
  const auto update = [&](std::uint32_t node) {
    ranks[node] = next[node] < count ? rank_of(token[node], token[next[node]]) : -1;
    if (ranks[node] >= 0) heap.push_back(static_cast<std::uint64_t>(static_cast<std::uint32_t>(ranks[node])) << 32 | node);
    return ranks[node] >= 0;
  };
  for (std::uint32_t i = 0; i < count; ++i) update(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<std::int32_t>(heap.back() >> 32);
    const auto node = static_cast<std::uint32_t>(heap.back());
    heap.pop_back();
    if (ranks[node] != rank) continue;
    const std::uint32_t absorbed = next[node];
    token[node] = merged_[static_cast<std::size_t>(rank)];
    next[node] = next[absorbed];
    if (next[node] < count) previous[next[node]] = node;
    ranks[absorbed] = -1;
    if (update(node)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (node > 0 && update(previous[node])) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (std::uint32_t node = 0; node < count; node = next[node]) ids.push_back(token[node]);
}

}  // namespace baleen
