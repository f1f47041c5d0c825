#include "data/tokenizer/tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/rng.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/rank_file.h"
#include "data/tokenizer/rank_tokenizer.h"
#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::shared_ptr<const Tokenizer> small_tokenizer() {
  return std::make_shared<RankTokenizer>(parse_rank_file(test::small_rank_file(), "small"), "small");
}

TEST(ByteTokenizer, GivesEachByteItsValue) {
  const auto tokenizer = load_tokenizer("bytes");
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_EQ(ids_of(*tokenizer, std::string("A\0\xff", 3)), (std::vector<std::int32_t>{65, 0, 255}));
  EXPECT_EQ(tokenizer->safe_cut("anything at all"), 15u);
}

TEST(Tokenizer, GivesBackAnyBytes) {
  for (const auto& tokenizer : {load_tokenizer("bytes"), small_tokenizer()}) {
    const Philox random(11);
    const std::string_view letters = "the and  in \n\xd0\xb8\xe2\x80'";
    for (std::uint64_t i = 0; i < 300; ++i) {
      std::string text;
      for (std::uint64_t k = 0; k < i * 3; ++k) {
        const auto words = random(k, i);
        if (i % 3 == 0) text += static_cast<char>(words[0]);                          // any bytes
        if (i % 3 == 1) text += letters[words[0] % letters.size()];                   // words and broken characters
        if (i % 3 == 2) text += static_cast<char>(words[0] % 4 == 0 ? words[1] : 0);  // NULs
      }
      const auto ids = ids_of(*tokenizer, text);
      for (const auto id : ids) ASSERT_NE(id, tokenizer->end_of_document());
      ASSERT_EQ(tokenizer->decode(ids), text) << tokenizer->kind() << " " << i;
    }
  }
}

TEST(Tokenizer, DecodesAnEndOfDocumentToNothingAndRefusesForeignIds) {
  for (const auto& tokenizer : {load_tokenizer("bytes"), small_tokenizer()}) {
    const std::int32_t end = tokenizer->end_of_document();
    EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{'a', end, 'b'}), "ab");
    EXPECT_ERROR((void)tokenizer->decode(std::vector<std::int32_t>{'a', end + 1}), ExitCode::bad_data, std::to_string(end + 1),
                 "position 1");
    EXPECT_ERROR((void)tokenizer->decode(std::vector<std::int32_t>{-1}), ExitCode::bad_data, "-1", "position 0");
  }
}

TEST(RankTokenizer, MergesWithinPieces) {
  const auto tokenizer = small_tokenizer();
  EXPECT_EQ(tokenizer->vocabulary_size(), 274);
  EXPECT_EQ(tokenizer->end_of_document(), 273);
  EXPECT_EQ(ids_of(*tokenizer, "the theme and"), (std::vector<std::int32_t>{258, 260, 'm', 'e', 265}));
}

TEST(RankTokenizer, RefusesRanksWithAnotherExpression) {
  TokenTable tokens;
  for (int value = 0; value < 256; ++value) tokens.add(std::string(1, static_cast<char>(value)));
  for (int i = 0; tokens.size() < 100256; ++i) tokens.add("token " + std::to_string(i));
  EXPECT_ERROR(RankTokenizer(std::move(tokens), "some.tiktoken"), ExitCode::bad_data, "cl100k_base", "some.tiktoken");
}

TEST(Tokenizer, ComesBackFromItsSerialisedForm) {
  const std::string text = "the thing in the end, and \xff\xfe more";
  for (const auto& tokenizer : {load_tokenizer("bytes"), small_tokenizer()}) {
    const auto again = tokenizer_from_json(tokenizer->to_json(), "here");
    EXPECT_EQ(again->kind(), tokenizer->kind());
    EXPECT_EQ(again->vocabulary_size(), tokenizer->vocabulary_size());
    EXPECT_EQ(ids_of(*again, text), ids_of(*tokenizer, text));
    EXPECT_EQ(again->to_json(), tokenizer->to_json());
  }
}

TEST(LoadTokenizer, TakesRanksSerialisedFormsAndSidecars) {
  const TemporaryFolder folder;
  const auto tokenizer = small_tokenizer();
  for (const auto& path : {folder.write("small.tiktoken", test::small_rank_file()), folder.write("tokenizer.json", tokenizer->to_json()),
                           folder.write("corpus.json", "{\"train\": {}, \"tokenizer\": " + tokenizer->to_json() + "}")})
    EXPECT_EQ(load_tokenizer(path)->to_json(), tokenizer->to_json()) << path;
}

TEST(LoadTokenizer, SaysWhatItAccepts) {
  const TemporaryFolder folder;
  const std::string accepted = "tiktoken rank file";
  EXPECT_ERROR((void)load_tokenizer(""), ExitCode::bad_config, accepted);
  EXPECT_ERROR((void)load_tokenizer("byte"), ExitCode::bad_data, "byte", "no such", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.path()), ExitCode::bad_data, "no tokenizer in this folder", folder.path());
  EXPECT_ERROR((void)load_tokenizer(folder.write("empty.tiktoken", "")), ExitCode::bad_data, "empty.tiktoken", "empty");
  EXPECT_ERROR((void)load_tokenizer(folder.write("a.txt", "In the beginning\n")), ExitCode::bad_data, "a.txt", "looks like text", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("a.gz", "\x1f\x8b\x08 zip")), ExitCode::bad_data, "a.gz", "gzip", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("bad.json", "{\"kind\": ")), ExitCode::bad_data, "bad.json", "JSON", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("hf.json", R"({"model": {}, "added_tokens": []})")), ExitCode::bad_data, "hf.json",
               "no pre_tokenizer");
  EXPECT_ERROR((void)load_tokenizer(folder.write("none.json", "{}")), ExitCode::bad_data, "none.json", "kind", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("kind.json", R"({"kind": "words"})")), ExitCode::bad_data, "kind.json", "words", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("number.json", R"({"kind": 7})")), ExitCode::bad_data, "number.json", "kind", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("pattern.json", R"({"kind": "tiktoken", "pattern": "cl100k", "ranks": ""})")),
               ExitCode::bad_data, "pattern.json", "cl100k", accepted);
  EXPECT_ERROR((void)load_tokenizer(folder.write("ranks.json", R"({"kind": "tiktoken", "pattern": "gpt2", "ranks": "AA== 0\n"})")),
               ExitCode::bad_data, "ranks.json", "single byte");
  EXPECT_ERROR((void)tokenizer_from_json("[1]", "a list"), ExitCode::bad_data, "a list", accepted);
}

TEST(Gpt2, AgreesWithTiktoken) {
  BALEEN_SHARED_FILE(ranks, "gpt2.tiktoken");
  const auto tokenizer = load_tokenizer(ranks);
  EXPECT_EQ(tokenizer->vocabulary_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_document(), 50256);
  const auto golden = parse_json(read_file(testing::golden_file("gpt2_tokens.json")), "test");
  ASSERT_EQ(golden["texts"].size(), 30u);
  for (const auto& entry : golden["texts"]) {
    const auto text = entry["text"].get<std::string>();
    EXPECT_EQ(ids_of(*tokenizer, text), entry["ids"].get<std::vector<std::int32_t>>()) << text;
    EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, text)), text);
  }
}

TEST(Gpt2, AgreesWithTiktokenOnTinyShakespeare) {
  BALEEN_SHARED_FILE(ranks, "gpt2.tiktoken");
  BALEEN_SHARED_FILE(shakespeare, "tinyshakespeare.txt");
  const auto golden = parse_json(read_file(testing::golden_file("gpt2_tokens.json")), "test")["tinyshakespeare"];
  const auto ids = ids_of(*load_tokenizer(ranks), read_file(shakespeare));
  EXPECT_EQ(ids.size(), golden["tokens"].get<std::size_t>());
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, a word a step
  for (const auto id : ids) hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001b3u;
  EXPECT_EQ(hash, std::stoull(golden["fnv1a"].get<std::string>(), nullptr, 16));
}

}  // namespace
}  // namespace baleen
