#include "base/json.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace baleen {
namespace {

// What the Error says that `parse_json` throws; empty when it throws none.
std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    (void)parse_json(text, "some.json", limits, "take another file");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_EQ(error.where(), "some.json");
    EXPECT_EQ(error.remedy(), "take another file");
    return error.what_is_wrong();
  }
  return "";
}

TEST(Json, ReadsOneObject) {
  const auto json = parse_json(" {\"a\": [1, -2, 3.5e3, true, null, \"\\u00e9\"], \"b\": {}}\n", "some.json");
  EXPECT_EQ(json["a"].size(), 6u);
  EXPECT_EQ(json["a"][1].get<int>(), -2);
  EXPECT_EQ(json["a"][2].get<double>(), 3500);
  EXPECT_EQ(json["a"][5].get<std::string>(), "\xc3\xa9");
  EXPECT_TRUE(json["b"].is_object());
  EXPECT_EQ(parse_json(R"({"n": 18446744073709551615})", "")["n"].get<std::uint64_t>(), std::numeric_limits<std::uint64_t>::max());
}

TEST(Json, RefusesWhatALenientParserTakes) {
  const std::pair<std::string, std::string> texts[]{
      {"", "does not start with '{'"},           {"  ", "does not start with '{'"},
      {"[1]", "does not start with '{'"},        {"3", "does not start with '{'"},
      {"\xEF\xBB\xBF{}", "byte-order mark"},     {R"({"a": 1, "b": {"c": 1, "c": 1}})", "duplicate key 'c'"},
      {std::string("{}\0", 3), "NUL at byte 2"}, {R"({"a": 1} {})", "malformed JSON at byte 10"},
      {R"({"a": 1)", "malformed JSON"},          {R"({"a": 01})", "malformed JSON"},
      {R"({"a": NaN})", "malformed JSON"},       {R"({"a": 1e999})", "malformed JSON"},
      {R"({/* */})", "malformed JSON"},          {"{\"a\": \"\xff\"}", "malformed JSON at byte 8"},
  };
  for (const auto& [text, problem] : texts) EXPECT_NE(refusal(text).find(problem), std::string::npos) << text << ": " << refusal(text);
}

TEST(Json, HoldsItsLimits) {
  const auto nested = [](int depth) { return R"({"a": )" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}"; };
  EXPECT_EQ(refusal(nested(128)), "");
  EXPECT_NE(refusal(nested(129)).find("deeper than 128 levels"), std::string::npos);
  EXPECT_NE(refusal(R"({"a": )" + std::string(5'000'000, '[')).find("deeper than 128 levels"), std::string::npos);
  EXPECT_EQ(refusal(R"({"a": [1, 2]})", {.values = 4}), "");
  EXPECT_NE(refusal(R"({"a": [1, 2, 3]})", {.values = 4}).find("more than 4 JSON values"), std::string::npos);
}

TEST(Json, WritesWhatItReads) {
  const std::string text = R"({"a":[0.1,-0.0,1e-300,12345678901234567],"b":"\"\\\n\u0001é"})";
  EXPECT_EQ(dump_json(parse_json(text, "")), text);
  EXPECT_EQ(dump_json(nlohmann::ordered_json{{"z", 1}, {"a", nullptr}}), R"({"z":1,"a":null})");
  EXPECT_EQ(quote_json("a\"b"), R"("a\"b")");
  EXPECT_EQ(dump_json(nlohmann::json{{"a", 1}}, 2), "{\n  \"a\": 1\n}");
  EXPECT_EQ(dump_json(nlohmann::json(std::numeric_limits<double>::quiet_NaN())), "null");
  EXPECT_EQ(dump_json(nlohmann::json(-std::numeric_limits<double>::infinity())), "null");
}

TEST(Json, SaysWhenTextCannotBeWritten) {
  EXPECT_THROW((void)dump_json(nlohmann::json("a\xff")), Error);
  EXPECT_THROW((void)dump_json(nlohmann::ordered_json("a\xff")), Error);
  EXPECT_EQ(dump_json_lossy(nlohmann::json("a\xff")), "\"a\xef\xbf\xbd\"");
}

TEST(Json, PrintsForeignText) {
  EXPECT_EQ(printable("a\x1b[31m\n\x7f"), "a\\x1b[31m\\x0a\\x7f");
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(160, 'x') + "…");
}

}  // namespace
}  // namespace baleen
