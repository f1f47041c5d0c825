#include "data/tokenizer/byte_pair_encoder.h"

#include <algorithm>
#include <bit>
#include <functional>

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
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    byte_ids_[static_cast<std::size_t>(value)] = tokens_.find({&byte, 1});
    BALEEN_CHECK(byte_ids_[static_cast<std::size_t>(value)] >= 0, "byte", value);
  }
  // A rank belongs to a byte string, so a pair merges when its concatenation is a token: every way to cut a token in two tokens.
  std::vector<Pair> pairs;
  for (std::int32_t id = 0; id < tokens_.size(); ++id) add_pairs_of(id, pairs);
  pairs_.resize(std::bit_ceil(2 * pairs.size() + 2));
  for (const Pair& pair : pairs) {
    std::size_t slot = slot_for(pair.key, pairs_.size());
    while (pairs_[slot].merged >= 0) slot = (slot + 1) & (pairs_.size() - 1);
    pairs_[slot] = pair;
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

std::int32_t BytePairEncoder::merge_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  std::size_t slot = slot_for(key, pairs_.size());
  while (pairs_[slot].merged >= 0 && pairs_[slot].key != key) slot = (slot + 1) & (pairs_.size() - 1);
  return pairs_[slot].merged;
}

void BytePairEncoder::encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return;
  if (const std::int32_t whole = tokens_.find(piece); whole >= 0) {
    ids.push_back(whole);  // most pieces of ordinary text; also what tiktoken does, for tokens that no merge reaches
  } else if (piece.size() <= short_piece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, scratch, ids);
  }
}

void BytePairEncoder::encode_short(std::string_view piece, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, short_piece> token, merged;  // merged[i]: what token[i] and token[i + 1] merge to, or -1
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) token[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) merged[i] = merge_of(token[i], token[i + 1]);
  while (count > 1) {
    std::size_t best = count;
    for (std::size_t i = 0; i + 1 < count; ++i)
      if (merged[i] >= 0 && (best == count || merged[i] < merged[best])) best = i;
    if (best == count) break;
    token[best] = merged[best];
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      token[i] = token[i + 1];
      merged[i] = merged[i + 1];
    }
    --count;
    if (best + 1 < count) merged[best] = merge_of(token[best], token[best + 1]);
    if (best > 0) merged[best - 1] = merge_of(token[best - 1], token[best]);
  }
  ids.insert(ids.end(), token.begin(), token.begin() + static_cast<std::ptrdiff_t>(count));
}

void BytePairEncoder::encode_long(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  BALEEN_CHECK(piece.size() < 0xffffffffu, "bytes", piece.size());
  const auto count = static_cast<std::uint32_t>(piece.size());
  auto& [token, merged, previous, next, heap] = scratch;
  token.resize(count);
  merged.resize(count);
  previous.resize(count);
  next.resize(count);
  heap.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    token[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
    previous[i] = i - 1;  // unused for node 0, which stays first
    next[i] = i + 1;      // count: the end
  }
  // Sets what a node and its neighbour merge to; a candidate already in the heap is stale when it says otherwise.
  const auto update = [&](std::uint32_t node) {
    merged[node] = next[node] < count ? merge_of(token[node], token[next[node]]) : -1;
    if (merged[node] >= 0) heap.push_back(static_cast<std::uint64_t>(static_cast<std::uint32_t>(merged[node])) << 32 | node);
    return merged[node] >= 0;
  };
  for (std::uint32_t i = 0; i < count; ++i) update(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<std::int32_t>(heap.back() >> 32);
    const auto node = static_cast<std::uint32_t>(heap.back());
    heap.pop_back();
    if (merged[node] != rank) continue;
    const std::uint32_t absorbed = next[node];
    token[node] = rank;
    next[node] = next[absorbed];
    if (next[node] < count) previous[next[node]] = node;
    merged[absorbed] = -1;
    if (update(node)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (node > 0 && update(previous[node])) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (std::uint32_t node = 0; node < count; node = next[node]) ids.push_back(token[node]);
}

}  // namespace baleen
