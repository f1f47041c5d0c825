// GPT-2's ids of two megabytes of code, Russian, Chinese, emoji and odd white space are Hugging Face's (tests/golden/gpt2_mixed.py, which
// makes the same text), and any bytes come back from their ids.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/rng.h"
#include "data/tokenizer/tokenizer.h"
#include "test_support.h"

namespace baleen {
namespace {

std::string utf8(std::uint32_t point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (point >> shift & 0x3f)); };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xc0 | point >> 6), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xe0 | point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | point >> 18), tail(12), tail(6), tail(0)};
}

class Generator {
 public:
  std::uint32_t below(std::size_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>((state_ >> 33) % limit);
  }
  std::string run(std::uint32_t first, std::size_t count, std::size_t longest) {
    std::string text;
    for (std::uint32_t left = 1 + below(longest); left > 0; --left) text += utf8(first + below(count));
    return text;
  }
  std::string run(const std::vector<std::string>& pieces, std::size_t longest) {
    std::string text;
    for (std::uint32_t left = 1 + below(longest); left > 0; --left) text += pieces[below(pieces.size())];
    return text;
  }

 private:
  std::uint64_t state_ = 20240229;
};

std::string mixed_text(const std::vector<std::string>& texts) {
  const std::vector<std::string> spaces{" ",      " ",      "  ",     "\n",     "\n\n",   "\t",       "\r\n", "\u00a0",
                                        "\u3000", "\u2028", "\u200b", "\u180e", "\ufeff", "\xc2\x85", "\x0b", "\x1c"};
  const std::string_view signs = "0123456789.,;:!?-_(){}[]<>=+*/\\'\"#@&|~`$%^";
  const std::vector<std::string> code{"for (int i = 0; i < n; ++i)",
                                      "return self.",
                                      "#include <",
                                      "std::vector<float>",
                                      "if __name__ == ",
                                      "\t\tx->y[i] += ",
                                      "0x7f",
                                      "'s",
                                      "'ll"};
  std::vector<std::string> sign_list;
  for (const char sign : signs) sign_list.emplace_back(1, sign);
  Generator random;
  std::string text;
  while (text.size() < 2'000'000) {
    switch (random.below(9)) {
      case 0: text += texts[random.below(texts.size())]; break;
      case 1: text += random.run('a', 26, 12); break;
      case 2: text += random.run('A', 58, 6); break;
      case 3: text += random.run(0x410, 64, 10); break;
      case 4: text += random.run(0x4e00, 2000, 8); break;
      case 5: text += random.run(0x1f300, 0x2ff, 3); break;
      case 6: text += random.run(spaces, 5); break;
      case 7: text += random.run(sign_list, 6); break;
      default: text += code[random.below(code.size())];
    }
    if (random.below(2) == 0) text += ' ';
  }
  return text;
}

// FNV-1a, a word a step.
template <class Words>
std::uint64_t fnv1a(const Words& words) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto word : words) hash = (hash ^ static_cast<std::make_unsigned_t<std::decay_t<decltype(word)>>>(word)) * 0x100000001b3u;
  return hash;
}

std::uint64_t hexadecimal(const nlohmann::json& text) {
  return std::stoull(text.get<std::string>(), nullptr, 16);
}

TEST(Gpt2, AgreesWithHuggingFaceOnMixedText) {
  BALEEN_SHARED_FILE(ranks, "gpt2.tiktoken");
  std::vector<std::string> texts;
  const auto known = parse_json(read_file(testing::golden_file("gpt2_tokens.json")), "gpt2_tokens.json");
  for (const auto& entry : known["texts"]) texts.push_back(entry["text"].get<std::string>());
  const std::string text = mixed_text(texts);
  const auto golden = parse_json(read_file(testing::golden_file("gpt2_mixed.json")), "gpt2_mixed.json");
  ASSERT_EQ(text.size(), golden["bytes"].get<std::size_t>());
  ASSERT_EQ(fnv1a(text), hexadecimal(golden["text_fnv1a"])) << "the text is not the one the golden values are of";

  const auto tokenizer = load_tokenizer(ranks);
  std::vector<std::int32_t> ids;
  tokenizer->encode(text, ids);
  EXPECT_EQ(ids.size(), golden["tokens"].get<std::size_t>());
  EXPECT_EQ(fnv1a(ids), hexadecimal(golden["fnv1a"]));
  EXPECT_TRUE(tokenizer->decode(ids) == text);
}

TEST(Gpt2, GivesBackAnyBytes) {
  BALEEN_SHARED_FILE(ranks, "gpt2.tiktoken");
  const auto tokenizer = load_tokenizer(ranks);
  const Philox random(derive_key(7, "mixed_text_test"));
  std::uint64_t at = 0;
  const auto next = [&] { return random(at++, 0)[0]; };
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (std::uint32_t pieces = next() % 60; pieces > 0; --pieces) {
      const std::uint32_t point = next() % 0x110000;
      const std::string whole = utf8(point);  // surrogates too, which UTF-8 forbids
      switch (next() % 5) {
        case 0: text += static_cast<char>(next()); break;                   // any byte
        case 1: text += whole; break;                                       // any code point
        case 2: text += whole.substr(0, 1 + next() % whole.size()); break;  // one that is cut
        case 3: text += whole.substr(next() % whole.size()); break;         // one without its beginning
        default: text += " \n\t 'sdaAnd\xd0\xb8"[next() % 13];              // what the expression looks at
      }
    }
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    ASSERT_EQ(tokenizer->decode(ids), text) << i;
  }
}

}  // namespace
}  // namespace baleen
