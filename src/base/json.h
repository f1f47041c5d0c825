// JSON in and out, parsed and written by one translation unit: the library's parser and writer are templates that cost every file that
// calls them seconds to compile. Strict: what a lenient parser lets through (duplicate keys, a byte-order mark, NUL padding, unbounded
// nesting) is refused, so that two programs can never read one file differently.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

struct JsonLimits {
  int depth = 128;                  // objects and arrays inside each other
  std::size_t values = 16'000'000;  // of any type; about 16 bytes of memory each and more for strings
};

// `text` must hold one object, and white space around it. Throws Error(bad_data) with `where`, what is wrong and `remedy`.
nlohmann::json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {}, const std::string& remedy = "");

// On one line, or with `indent` ≥ 0 over several. Numbers that are not finite become null. Throws Error(bad_data) for a string that is not
// UTF-8, which JSON cannot hold.
std::string dump_json(const nlohmann::json& value, int indent = -1);
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);
// A text as a JSON string, with its quotes.
std::string quote_json(const std::string& text);
// For output that is only looked at: U+FFFD in place of what is not UTF-8.
std::string dump_json_lossy(const nlohmann::json& value, int indent = -1);

// Text from a file as a message can show it: control characters escaped, and not longer than a line or so.
std::string printable(std::string_view text);
// The first `most` of several, for a message: "a, b and 3 more".
std::string some_of(const std::vector<std::string>& several, std::size_t most);

}  // namespace baleen
