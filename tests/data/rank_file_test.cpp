#include "data/tokenizer/rank_file.h"

#include "test_support.h"

namespace baleen {
namespace {

using test::small_rank_file;

TEST(RankFile, ReadsWhatItWrites) {
  const TokenTable tokens = parse_rank_file(small_rank_file(), "small");
  EXPECT_EQ(tokens.size(), 273);
  EXPECT_EQ(tokens.bytes(258), "the");
  EXPECT_EQ(tokens.find("the"), 258);
  EXPECT_EQ(tokens.find("thee"), -1);
  EXPECT_EQ(tokens.find(std::string_view("\0", 1)), 0);
  EXPECT_EQ(write_rank_file(tokens), small_rank_file());
}

TEST(RankFile, TakesAnyOrderWindowsLinesAndEmptyLines) {
  std::string reversed;
  const std::string text = small_rank_file();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    reversed = text.substr(begin, end - begin) + "\r\n\n" + reversed;
    begin = end + 1;
  }
  EXPECT_EQ(write_rank_file(parse_rank_file(reversed, "reversed")), text);
  EXPECT_EQ(write_rank_file(parse_rank_file(text.substr(0, text.size() - 1), "no newline at the end")), text);
}

struct BadFile {
  const char* name;
  std::string content;
  std::vector<std::string> message;
};

TEST(RankFile, NamesWhatIsWrongAndTheLine) {
  const std::string good = small_rank_file();
  const auto changed = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const auto at = text.find(from);
    if (at == std::string::npos) ADD_FAILURE() << from;
    return text.replace(at, from.size(), to);
  };
  const std::string last = encode_base64(" \xd0\xb8") + " 272\n";
  const BadFile files[]{
      {"empty", "", {"it is empty"}},
      {"only empty lines", "\n\n", {"it is empty"}},
      {"bad base64", changed("AQ== 1\n", "AQ=! 1\n"), {"not a base64 token", "line 2"}},
      {"an empty token", changed("AQ== 1\n", " 1\n"), {"not a base64 token", "line 2"}},
      {"no space", changed("AQ== 1\n", "AQ==\n"), {"no space", "line 2"}},
      {"no rank", changed("AQ== 1\n", "AQ== \n"), {"not a rank", "line 2"}},
      {"a negative rank", changed("AQ== 1\n", "AQ== -1\n"), {"not a rank", "line 2"}},
      {"a rank with more behind it", changed("AQ== 1\n", "AQ== 1 x\n"), {"\"1 x\" is not a rank", "line 2"}},
      {"a rank above 2^32", changed("AQ== 1\n", "AQ== 4294967297\n"), {"not a rank", "line 2"}},
      {"a rank twice", changed("AQ== 1\n", "AQ== 0\n"), {"rank 0", "line 1 already", "line 2"}},
      {"a hole", changed(last, encode_base64(" \xd0\xb8") + " 273\n"), {"rank 273", "without holes", "line 273"}},
      {"a token twice", changed(last, "AA== 272\n"), {"AA==", "line 1 too", "line 273"}},
      {"a byte missing", changed("AQ== 1\n", encode_base64("zzzz") + " 1\n"), {"single byte 1,"}},
      {"garbage at the end", good + "garbage", {"no space", "line 274"}},
      {"binary garbage at the end", good + std::string("\0\x01 \xff", 4), {"line 274"}},
      {"a long token", changed("AQ== 1\n", encode_base64(std::string(513, 'x')) + " 1\n"), {"513 bytes", "512", "line 2"}},
      {"a huge file", good + std::string(max_rank_file_bytes, '\n'), {"at most"}},
  };
  for (const BadFile& file : files) {
    SCOPED_TRACE(file.name);
    const Error error = test::error_of([&] { (void)parse_rank_file(file.content, "some.tiktoken"); });
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(error.where().find("some.tiktoken"), std::string::npos);
    EXPECT_FALSE(error.remedy().empty());
    for (const auto& part : file.message)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no " << part << " in\n" << error.what();
  }
}

TEST(RankFile, IsTellableFromOtherText) {
  EXPECT_TRUE(looks_like_rank_file("IQ== 0\nIg== 1\n"));
  EXPECT_TRUE(looks_like_rank_file("IQ== 0\r\n"));
  for (const char* text : {"", "IQ==", "In the beginning", "IQ== x\n", " 0\n", "{\"a\": 1}"})
    EXPECT_FALSE(looks_like_rank_file(text)) << text;
}

}  // namespace
}  // namespace baleen
