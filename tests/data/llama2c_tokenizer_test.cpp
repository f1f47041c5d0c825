// llama2.c's tokenizer: ids as its run.c gives them, any bytes and back, and a reason for each kind of damage to a file.
#include "data/tokenizer/llama2c_tokenizer.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>

#include "base/rng.h"
#include "test_support.h"

namespace baleen {
namespace {

struct Piece {
  float score;
  std::string bytes;
};

// The special tokens, the bytes and a few pieces, some of equal score.
std::vector<Piece> small_vocabulary() {
  std::vector<Piece> pieces{{0, "<unk>"}, {0, "\n<s>\n"}, {0, "\n</s>\n"}};
  for (int value = 0; value < 256; ++value) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(value));
    pieces.push_back({0, name});
  }
  float score = 0;
  for (const char* text : {" t", "he", "th", " a", "aa", " the", "the", "\xd0\xb8", "ab", "ba", "aba", "0x",
                           " ",  "e",  "t",  "a",  "h",  "b",    "x",   "0",        "<",  ">",  "aaaa"})
    pieces.push_back({-std::floor(score++ / 2), text});
  return pieces;
}

std::string file_of(const std::vector<Piece>& pieces, std::int32_t longest = 7) {
  std::string file(reinterpret_cast<const char*>(&longest), 4);
  for (const Piece& piece : pieces) {
    const auto length = static_cast<std::int32_t>(piece.bytes.size());
    file.append(reinterpret_cast<const char*>(&piece.score), 4).append(reinterpret_cast<const char*>(&length), 4).append(piece.bytes);
  }
  return file;
}

std::vector<std::int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

// run.c's loop: look at all pairs, merge the best, begin again.
std::vector<std::int32_t> encoded_by_definition(const std::vector<Piece>& pieces, const std::string& text) {
  std::map<std::string, std::int32_t> ids_of_pieces;
  for (std::size_t id = 0; id < pieces.size(); ++id) ids_of_pieces.emplace(pieces[id].bytes, static_cast<std::int32_t>(id));
  const auto find = [&](const std::string& bytes) {
    const auto found = ids_of_pieces.find(bytes);
    return found == ids_of_pieces.end() ? -1 : found->second;
  };
  std::vector<std::int32_t> ids;
  if (text.empty()) return ids;
  ids.push_back(find(" "));
  std::string character;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] & 0xC0) != 0x80) character.clear();
    character += text[i];
    if (i + 1 < text.size() && (text[i + 1] & 0xC0) == 0x80 && character.size() < 4) continue;
    const std::int32_t id = find(character);
    if (id >= 0)
      ids.push_back(id);
    else
      for (const char byte : character) ids.push_back(static_cast<unsigned char>(byte) + 3);
    character.clear();
  }
  for (;;) {
    float best_score = -1e10f;
    std::int32_t best_id = -1;
    std::size_t best_place = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const std::int32_t id = find(pieces[static_cast<std::size_t>(ids[i])].bytes + pieces[static_cast<std::size_t>(ids[i + 1])].bytes);
      if (id >= 0 && pieces[static_cast<std::size_t>(id)].score > best_score) {
        best_score = pieces[static_cast<std::size_t>(id)].score;
        best_id = id;
        best_place = i;
      }
    }
    if (best_id < 0) return ids;
    ids[best_place] = best_id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_place) + 1);
  }
}

std::string random_text(const Philox& random, std::uint64_t number) {
  const std::string_view letters = "ttheab  <0x>a\n\xd0\xb8\xe2\x80\xff";
  std::string text;
  const auto head = random(1000 * number);
  for (std::uint64_t i = 1; i <= head[0] % 40; ++i) {
    const auto words = random(1000 * number + i);
    text += words[0] % 8 == 0 ? static_cast<char>(words[1] % 256) : letters[words[1] % letters.size()];
  }
  return text;
}

TEST(Llama2cTokenizer, MergesAsRunCDoes) {
  const auto pieces = small_vocabulary();
  const Llama2cTokenizer tokenizer(file_of(pieces), "small");
  const Philox random(5);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::string text = random_text(random, i);
    ASSERT_EQ(ids_of(tokenizer, text), encoded_by_definition(pieces, text)) << text;
  }
}

TEST(Llama2cTokenizer, GivesBackAnyBytesAndStripsOnlyItsOwnSpace) {
  const Llama2cTokenizer tokenizer(file_of(small_vocabulary()), "small");
  const Philox random(6);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const std::string text = random_text(random, i);
    const auto ids = ids_of(tokenizer, text);
    ASSERT_EQ(tokenizer.decode(ids), text);
    std::string streamed;
    std::int32_t previous = tokenizer.end_of_document();
    for (const std::int32_t id : ids) {
      streamed += tokenizer.decode({&id, 1}, previous);
      previous = id;
    }
    ASSERT_EQ(streamed, text);
  }
  auto two = ids_of(tokenizer, " a");
  two.push_back(1);
  const auto second = ids_of(tokenizer, "the");
  two.insert(two.end(), second.begin(), second.end());
  EXPECT_EQ(tokenizer.decode(two), " athe");
}

TEST(Llama2cTokenizer, CarriesItself) {
  test::TemporaryFolder folder;
  const auto tokenizer = load_tokenizer(folder.write("tok.bin", file_of(small_vocabulary())));
  EXPECT_EQ(tokenizer->kind(), "llama2c");
  EXPECT_EQ(tokenizer->vocabulary_size(), static_cast<std::int32_t>(small_vocabulary().size()));
  EXPECT_EQ(tokenizer->end_of_document(), 1);
  const auto again = tokenizer_from_json(tokenizer->to_json(), "here");
  EXPECT_EQ(again->to_json(), tokenizer->to_json());
  EXPECT_EQ(ids_of(*again, "the ab"), ids_of(*tokenizer, "the ab"));
  EXPECT_ERROR((void)tokenizer_from_json(R"({"kind":"llama2c","file":"!"})", "here"), ExitCode::bad_data, "base64", "here");
}

TEST(Llama2cTokenizer, DamagedFilesAreRefusedWithAReason) {
  const auto pieces = small_vocabulary();
  const std::string whole = file_of(pieces);
  const auto refused = [](const std::string& content, const char* reason) {
    EXPECT_ERROR(Llama2cTokenizer(content, "tok.bin"), ExitCode::bad_data, "tok.bin", reason);
  };
  refused("", "<unk>");
  refused(whole.substr(0, 17), "ids, fewer");
  refused(whole.substr(0, whole.size() - 1), "truncated in the bytes of id");
  refused(whole + std::string(3, '\0'), "truncated in the entry of id");
  refused(file_of(pieces, 0), "longest");
  refused(file_of(pieces, 1 << 30), "longest");
  auto other = pieces;
  other[5].bytes = "<0x05>";
  refused(file_of(other), "id 5 is not <0x02>");
  other = pieces;
  other[100].score = std::numeric_limits<float>::quiet_NaN();
  refused(file_of(other), "score of id 100");
  std::string length = whole;
  const std::int32_t negative = -1;
  std::memcpy(length.data() + 4 + 13 + 4, &negative, 4);  // of id 1
  refused(length, "id 1 would have -1 bytes");
}

TEST(Llama2cTokenizer, Tok512MergesAsRunCDoes) {
  BALEEN_SHARED_FILE(path, "tok512.bin");
  const auto tokenizer = load_tokenizer(path);
  ASSERT_EQ(tokenizer->vocabulary_size(), 512);
  const std::string content = read_file(path);
  std::vector<Piece> pieces;
  for (std::size_t at = 4; at < content.size();) {
    Piece piece;
    std::int32_t length = 0;
    std::memcpy(&piece.score, content.data() + at, 4);
    std::memcpy(&length, content.data() + at + 4, 4);
    piece.bytes = content.substr(at + 8, static_cast<std::size_t>(length));
    at += 8 + static_cast<std::size_t>(length);
    pieces.push_back(piece);
  }
  for (const char* text : {"Once upon a time, there was a little girl named Lily.", "Tom said, \"I don't know!\"\n\n  They ran.",
                           "\xe2\x80\x8a\xf0\x9f\x99\x82 42", " "}) {
    EXPECT_EQ(ids_of(*tokenizer, text), encoded_by_definition(pieces, text)) << text;
    EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, text)), text);
  }
}

}  // namespace
}  // namespace baleen
