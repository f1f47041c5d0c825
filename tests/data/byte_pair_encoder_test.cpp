#include "data/tokenizer/byte_pair_encoder.h"

#include <map>

#include "base/rng.h"
#include "data/tokenizer/rank_file.h"
#include "test_support.h"

namespace baleen {
namespace {

// A random vocabulary over a few letters, so that merges compete: the bytes, then `merges` concatenations of tokens already there.
TokenTable random_vocabulary(std::uint64_t seed, int merges) {
  TokenTable tokens;
  for (int value = 0; value < 256; ++value) tokens.add(std::string(1, static_cast<char>(value)));
  const Philox random(seed);
  std::vector<std::string> pool{"a", "b", "c"};
  for (std::uint64_t i = 0; tokens.size() < 256 + merges; ++i) {
    const auto words = random(i);
    const std::string joined = pool[words[0] % pool.size()] + pool[words[1] % pool.size()];
    if (joined.size() > 12 || tokens.find(joined) >= 0) continue;
    tokens.add(joined);
    pool.push_back(joined);
  }
  return tokens;
}

// The definition, word for word: look for the adjacent parts whose concatenation has the lowest rank, the leftmost of equals, and join
// them.
std::vector<std::int32_t> by_definition(const TokenTable& tokens, const std::string& piece) {
  if (tokens.find(piece) >= 0) return {tokens.find(piece)};
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    std::int32_t best = -1;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::int32_t rank = tokens.find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best < 0 || rank < best)) best = rank, at = i;
    }
    if (best < 0) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  std::vector<std::int32_t> ids;
  for (const auto& part : parts) ids.push_back(tokens.find(part));
  return ids;
}

TEST(BytePairEncoder, MergesAsTheDefinitionSays) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const BytePairEncoder encoder(random_vocabulary(seed, 40 + 30 * static_cast<int>(seed)));
    BytePairEncoder::Scratch scratch;
    const Philox random(1000 + seed);
    for (std::uint64_t i = 0; i < 150; ++i) {
      std::string piece;
      const std::size_t length = 1 + random(i, 1)[0] % (i % 2 == 0 ? 64 : 300);  // both sides of the switch to the heap
      for (std::size_t k = 0; k < length; ++k) piece += "abcd"[random(k, 2 + i)[0] % (i % 3 == 0 ? 2 : 4)];
      std::vector<std::int32_t> ids{-7};  // encode appends
      encoder.encode(piece, scratch, ids);
      ASSERT_EQ(ids.front(), -7);
      ids.erase(ids.begin());
      ASSERT_EQ(ids, by_definition(encoder.tokens(), piece)) << "seed " << seed << " piece " << piece;
    }
  }
}

TEST(BytePairEncoder, TakesTheLeftmostOfEqualPairs) {
  TokenTable tokens = parse_rank_file(test::small_rank_file(), "small");
  tokens.add("aa");
  const BytePairEncoder encoder(std::move(tokens));
  BytePairEncoder::Scratch scratch;
  for (const std::size_t length : {5, 101}) {  // odd: where the single letter is left tells the direction
    std::vector<std::int32_t> ids;
    encoder.encode(std::string(length, 'a'), scratch, ids);
    std::vector<std::int32_t> expected(length / 2, 273);
    expected.push_back('a');
    EXPECT_EQ(ids, expected);
  }
}

TEST(BytePairEncoder, TakesAWholeTokenThatNoMergeReaches) {
  TokenTable tokens = parse_rank_file(test::small_rank_file(), "small");
  tokens.add("qqqqq");
  const BytePairEncoder encoder(std::move(tokens));
  BytePairEncoder::Scratch scratch;
  std::vector<std::int32_t> ids;
  encoder.encode("qqqqq", scratch, ids);
  EXPECT_EQ(ids, std::vector<std::int32_t>{273});
}

// A quadratic encoder would take 10¹² steps here and run into ctest's time limit.
TEST(BytePairEncoder, EncodesAMegabyteWithoutSpaces) {
  const BytePairEncoder encoder(random_vocabulary(3, 100));
  std::string piece(1 << 20, 'a');
  const Philox random(5);
  for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = "ab"[random(i)[0] % 2];
  BytePairEncoder::Scratch scratch;
  std::vector<std::int32_t> ids;
  encoder.encode(piece, scratch, ids);
  std::string text;
  for (const auto id : ids) text += encoder.tokens().bytes(id);
  EXPECT_EQ(text, piece);
  EXPECT_LT(ids.size(), piece.size());
}

}  // namespace
}  // namespace baleen
