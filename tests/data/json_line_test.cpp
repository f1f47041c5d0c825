#include "data/json_line.h"

#include "test_support.h"

namespace baleen {
namespace {

std::string text_of(std::string_view line, const std::string& field = "text") {
  return json_text_field(line, field, "some.jsonl, line 7");
}

TEST(JsonLine, GivesTheTextOfTheField) {
  EXPECT_EQ(text_of(R"({"text": "a\nb\u00e9\ud83d\ude00 \u0000."})"), std::string("a\nb\xc3\xa9\xf0\x9f\x98\x80 \0.", 12));
  EXPECT_EQ(text_of(R"( {"id": 3, "meta": {"text": "inner", "list": ["text", [1.5e3, null, true, {}]]}, "text": "outer", "x": "y"} )"),
            "outer");
  EXPECT_EQ(text_of(R"({"text": "", "n": -1})"), "");
  EXPECT_EQ(text_of(R"({"text": "a", "content": "b"})", "content"), "b");
}

TEST(JsonLine, TakesNestingUpToItsLimit) {
  const auto nested = [](int depth) {
    return R"({"a": )" + std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']') +
           R"(, "text": "b"})";
  };
  EXPECT_EQ(text_of(nested(max_json_depth - 1)), "b");
  EXPECT_ERROR((void)text_of(nested(max_json_depth)), ExitCode::bad_data, "nested", "64");
  EXPECT_ERROR((void)text_of(R"({"a": )" + std::string(5'000'000, '[')), ExitCode::bad_data, "nested");
}

TEST(JsonLine, SaysWhatIsWrong) {
  const std::pair<std::string, std::string> lines[]{
      {"", "invalid JSON"},
      {"no JSON", "invalid JSON at byte 2"},
      {R"({"text": "a")", "invalid JSON"},
      {R"({"text": "a"} {"text": "b"})", "invalid JSON"},
      {R"({"text": "a"} x)", "invalid JSON"},
      {R"({"text": "a",})", "invalid JSON"},
      {R"({'text': 'a'})", "invalid JSON"},
      {"{\"text\": \"\xff\"}", "invalid JSON at byte 11"},
      {"{\"text\": \"a\tb\"}", "invalid JSON"},
      {R"({"text": "\ud800"})", "invalid JSON"},
      {std::string("{\"text\": \"a\"}\0", 14), "NUL"},
      {R"("text")", "not a JSON object"},
      {R"(["text", "a"])", "not a JSON object"},
      {"3", "not a JSON object"},
      {"null", "not a JSON object"},
      {R"({"content": "a"})", "no \"text\""},
      {R"({"a": {"text": "a"}})", "no \"text\""},
      {R"({"text": 3})", "not text"},
      {R"({"text": null})", "not text"},
      {R"({"text": ["a"]})", "not text"},
      {R"({"text": {"text": "a"}})", "not text"},
      {R"({"text": "a", "text": "b"})", "twice"},
  };
  for (const auto& [line, message] : lines) {
    SCOPED_TRACE(line);
    EXPECT_ERROR((void)text_of(line), ExitCode::bad_data, message, "some.jsonl, line 7", "JSON object with its text under");
  }
}

}  // namespace
}  // namespace baleen
