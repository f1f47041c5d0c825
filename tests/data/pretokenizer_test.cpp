#include "data/tokenizer/pretokenizer.h"

#include "base/json.h"
#include "base/rng.h"
#include "data/tokenizer/utf8.h"
#include "test_support.h"

namespace baleen {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const Pretokenizer& pretokenizer, std::string_view text) {
  std::vector<std::size_t> ends;
  pretokenizer.split(text, ends);
  Pieces pieces;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return pieces;
}

Pieces split(std::string_view text, bool jit = true) {
  return split(*Pretokenizer::gpt2(jit), text);
}

// Text that mixes everything the expression tells apart, by chance.
std::string random_text(std::uint64_t seed, std::size_t parts) {
  const std::string pieces[]{"a",        "the",  "Zx",     "1",      "42",     " ",      "  ",     "\n",     "\t",
                             "\r\n",     "'",    "'s",     "'re",    "'l",     ".",      "--",     "я",      "мир",
                             "的",       "。",   "\u3000", "\u00a0", "\u2003", "😀",     "é",      "½",      "\xff",
                             "\xe2\x80", "\xc3", "\x85",   "\x80",   "\xf0",   "\u180e", "\u2028", "\u200b", std::string(1, '\0')};
  const Philox random(seed);
  std::string text;
  for (std::size_t i = 0; i < parts; ++i) text += pieces[random(i)[0] % std::size(pieces)];
  return text;
}

TEST(Utf8, KnowsTheCharactersOfRfc3629) {
  for (const char* valid : {"a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbf",
                            "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(utf8_character(valid), std::string_view(valid).size()) << valid;
  for (const char* invalid : {"", "\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
                              "\xf0\x8f\xbf\xbf", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
    EXPECT_EQ(utf8_character(invalid), 0u);
  EXPECT_EQ(utf8_valid_prefix("twelve bytes\xff"), 12u);
  EXPECT_EQ(utf8_valid_prefix("eleven byt\xc3\xa9\xc3"), 12u);
  EXPECT_EQ(utf8_invalid_prefix("\xff\x80\xc3\xc3\xa9"), 3u);
}

TEST(Pretokenizer, SplitsAsGpt2Does) {
  EXPECT_EQ(split("I'm 12 years"), (Pieces{"I", "'m", " 12", " years"}));
  EXPECT_EQ(split("we'll DON'T"), (Pieces{"we", "'ll", " DON", "'", "T"}));
  EXPECT_EQ(split("a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(split("a \n\n b "), (Pieces{"a", " \n\n", " b", " "}));
  EXPECT_EQ(split("a\n\nb"), (Pieces{"a", "\n", "\n", "b"}));
  EXPECT_EQ(split("x += 1;//"), (Pieces{"x", " +=", " 1", ";//"}));
  EXPECT_EQ(split("мир, 的。"), (Pieces{"мир", ",", " 的", "。"}));
  EXPECT_EQ(split("a\u180e\u3000b"), (Pieces{"a", "\u180e", "\u3000", "b"}));  // U+180E is no white space since Unicode 6.3
  EXPECT_EQ(split(""), Pieces{});
}

TEST(Pretokenizer, KeepsBytesThatAreNotUtf8AsPiecesOfTheirOwn) {
  EXPECT_EQ(split("ab\xff\xfe"
                  "cd"),
            (Pieces{"ab", "\xff\xfe", "cd"}));
  EXPECT_EQ(split("\xe2\x80 a"), (Pieces{"\xe2\x80", " a"}));
  EXPECT_EQ(split("a  \xff"), (Pieces{"a", "  ", "\xff"}));
  EXPECT_EQ(split(std::string_view("a\0b", 3)), (Pieces{"a", std::string(1, '\0'), "b"}));
}

TEST(Pretokenizer, SplitsTheSameWithoutJit) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = random_text(seed, 2000);
    ASSERT_EQ(split(text, false), split(text, true));
  }
}

TEST(Pretokenizer, TakesMegabytesOfOneKind) {
  for (const std::string unit : {"a", " ", "\n", "1", "=", "的", "\u3000", "\xff"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += unit;
    EXPECT_LE(split(text).size(), 2u) << unit;
    EXPECT_LE(split(text, false).size(), 2u) << unit;
  }
}

TEST(Pretokenizer, CutsOnlyWhereBothSidesSplitAsTheWholeDoes) {
  std::size_t cuts = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const std::string text = random_text(100 + seed, 2 + seed % 40), more = random_text(5000 + seed, 6);
    const std::size_t cut = Pretokenizer::safe_cut(text);
    ASSERT_LT(cut, text.size());
    if (cut == 0) continue;
    ++cuts;
    Pieces joined = split(std::string_view(text).substr(0, cut));
    const Pieces after = split(text.substr(cut) + more);
    joined.insert(joined.end(), after.begin(), after.end());
    ASSERT_EQ(joined, split(text + more)) << "seed " << seed << " cut " << cut;
  }
  EXPECT_GT(cuts, 2000u);
}

// The pieces are those of tokenizers 0.23.3: pre_tokenizers.Split(Regex(expression), "isolated").
TEST(Pretokenizer, ReadsExpressionsAsOnigurumaDoes) {
  struct Case {
    const char *expression, *text, *pieces;
  };
  const Case cases[]{
      {"('s|'t)| ?\\p{L}+|\\p{N}+|\\s+", "it's 12", "it|'s| |12"},
      {"(?=(?:\\p{N}{3})+(?!\\p{N}))", "1234567", "1|234|567"},
      {"(?=(?:\\p{N}{3})+(?!\\p{N}))", "x 123456", "x |123|456"},
      {"a*", "baab", "b|aa|b"},
      {"x|", "axb", "a|x|b"},
      {"[\\p{Han}]+", "你、好。々〆、", "你|、|好|。|々|〆、"},
      {"\\p{^Han}+", "你、好。", "你|、|好|。"},
      {"\\P{ han }+", "你、好。", "你|、|好|。"},
      {"[^\\p{Han}]", "你、好。", "你|、|好|。"},
      {"\\p{Hiragana}|\\p{Katakana}+", "ーカタ・カひら、", "ー|カタ|・|カ|ひ|ら|、"},
      {"\\w+", "\u0939\u093f\u0928\u094d\u0926\u0940 x_y ①Ⅷ² _\u203f_", "\u0939\u093f\u0928\u094d\u0926\u0940| |x_y| ①|Ⅷ²| |_\u203f_"},
      {"\\W+", "\u0939\u093f\u0928\u094d\u0926\u0940 x_y ①Ⅷ²", "\u0939\u093f\u0928\u094d\u0926\u0940| |x_y| ①|Ⅷ²"},
      {"[\\w-]+", "\u0939\u093f\u0928\u094d\u0926\u0940-x ①x².", "\u0939\u093f\u0928\u094d\u0926\u0940-x| ①|x|²."},
      {"[^\\w]", "x²①", "x|²|①"},
      {"(?i:\\w)+|(?!\\w).", "x²①y", "x²|①|y"},
      {"\\h+", "facing xyz", "fac|ing xyz"},
      {"[\\h_]+", "fa_cing", "fa_c|ing"},
      {"\\H+", "facing", "fac|ing"},
      {"\\b", "\u0939\u093f\u0928\u094d\u0926\u0940 ab1 ①x²", "\u0939\u093f\u0928\u094d\u0926\u0940| |ab1| ①|x²"},
      {"\\B", "\u0939\u093f\u0928\u094d ab1 ①x", "\u0939|\u093f|\u0928|\u094d a|b|1 |①x"},
      {"\\p{N}{1,3}(?=(?:\\p{N}{3})*\\b)", "x1234567 12", "x|1|234|567| |12"},
      {"^.", "ab\nc\n\nd\n", "a|b\n|c|\n\n|d|\n"},
      {".$", "ab\nc\n\nd", "a|b|\n|c|\n\n|d"},
      {"$", "a\n\nb\n", "a|\n|\nb|\n"},
      {"^", "\na\n\nb\n", "\n|a\n|\n|b\n"},
      {"\\A.|.\\Z", "ab\ncd\n", "a|b\nc|d|\n"},
      {"\\p{N}{1,3}+", "1234567", "1234567"},
      {"\\p{N}{2}?", "12345", "12|34|5"},
      {"(?:x\\p{N}{1,2})+?y?", "x12x1y", "x12|x1y"},
      {"x{,2}y", "xxxy", "x|xxy"},
      {"x{1,2y}+", "x{1,2y}}", "x{1,2y}}"},
      {"(?m:b.+)", "a\nb\nc", "a\n|b\nc"},
      {"(?mx: b .+ # to the end\n)", "a\nb\nc", "a\n|b\nc"},
      {"(?i)AB|c", "xaBC", "x|aB|C"},
      {"\\p{Letter}+|\\p{Decimal_Number}", "ab12", "ab|1|2"},
      {"x(?#c\\))+", "axxb", "a|xx|b"},
      {"\\v", "a\013b\nc", "a|\013|b\nc"},
      {"\\u4f60|\\x{597d}|\\x41", "A你好", "A|你|好"},
      {"[]a]+", "x]ay", "x|]a|y"},
      {"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|"
       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
       "It'S theTest 1234 + x//  y", "It'S| the|Test| |123|4| +| x|//| | y"},
      {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
       "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
       "x[ab] \\cd \u0939\u093f\u0928\u094d\u0926\u0940!!\n  ok", "x|[ab|]| \\|cd| \u0939\u093f\u0928\u094d\u0926\u0940|!!\n| | ok"},
      {"[a[bc]d[\\d]]+|[e-g[\\w]x]", "xab1d-[]e\u00e9", "x|ab1d|-[]|e|\u00e9"},
      {" ?[^(\\s|[.,!?])]+", "ab, (c|d] [e)", "ab|, (|c|||d]| [e|)"},
      {"(?i:[sd])|(?i:\\p{Lu}) ", "Sd a B ", "S|d| a |B "},
      {"(?i:x)[\\p{Lu}]", "XaXAxB", "Xa|XA|xB"},
      {"[\\b]", "ab\010", "ab|\010"},
  };
  for (const Case& test : cases) {
    std::string joined;
    for (const std::string& piece : split(*Pretokenizer::compile(test.expression, "test"), test.text))
      joined += (joined.empty() ? "" : "|") + piece;
    EXPECT_EQ(joined, test.pieces) << test.expression;
  }
}

TEST(Pretokenizer, NamesWhatOnigurumaReadsInAnotherWay) {
  struct Case {
    const char *expression, *named;
  };
  const Case cases[]{{"\\X", "\\X"},
                     {"\\R", "\\R"},
                     {"\\N", "\\N"},
                     {"a\\K.", "\\K"},
                     {"\\G", "\\G"},
                     {"\\Qx\\E", "\\Q"},
                     {"x\\E", "\\E"},
                     {"\\V", "\\V"},
                     {"\\O", "\\O"},
                     {"\\y", "\\y"},
                     {"\\pL", "\\p"},
                     {"\\xff", "\\xff"},
                     {"[[:alpha:]]", "[:alpha:]"},
                     {"[a[^b]]", "[a[^"},
                     {"[a-[b]]", "[a-[b"},
                     {"[[a]-z]", "[[a]-"},
                     {"[a[b-]z]", "[a[b-]z"},
                     {"[a[-b]]", "[a[-"},
                     {"[\\p{L}&&a]", "&&"},
                     {"[\\W]", "\\W"},
                     {"a(?i)b|c", "(?i)"},
                     {"(?i)[\\p{Lu}]", "(?i) and [\\p"},
                     {"(?i:a[\\P{Lu}])", "(?i) and [\\P"},
                     {"(*LF)a", "(*"},
                     {"(?s:.)", "(?s"},
                     {"\\p{In_Basic_Latin}", "\\p{In_Basic_Latin}"}};
  for (const Case& test : cases)
    EXPECT_ERROR((void)Pretokenizer::compile(test.expression, "t.json"), ExitCode::bad_data, "t.json",
                 std::string("with \"") + printable(test.named) + "\"", "tiktoken");
  EXPECT_ERROR((void)Pretokenizer::compile("a(b", "t.json"), ExitCode::bad_data, "PCRE2 does not read: missing", "behind \"a(b\"",
               "tiktoken");
}

TEST(Pretokenizer, SaysWhichLimitAMatchReached) {
  const auto pretokenizer = Pretokenizer::compile("(?:a+)+[bc]", "t.json");
  std::vector<std::size_t> ends;
  EXPECT_ERROR(pretokenizer->split(std::string(60, 'a') + "d", ends), ExitCode::bad_data, "t.json", "limit", "token file");
}

TEST(Pretokenizer, FindsTheLastSafeCut) {
  EXPECT_EQ(Pretokenizer::safe_cut("one two three"), 7u);
  EXPECT_EQ(Pretokenizer::safe_cut("one two  "), 7u);
  EXPECT_EQ(Pretokenizer::safe_cut("的。\n"), 6u);
  EXPECT_EQ(Pretokenizer::safe_cut("的\u3000\n"), 0u);
  EXPECT_EQ(Pretokenizer::safe_cut("a\u2003 b"), 0u);
  EXPECT_EQ(Pretokenizer::safe_cut("\xff b"), 1u);
  for (const char* none : {"", " ", "   ", "word", " word"}) EXPECT_EQ(Pretokenizer::safe_cut(none), 0u) << none;
}

}  // namespace
}  // namespace baleen
