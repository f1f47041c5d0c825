// JSON from outside: what a lenient parser lets through (duplicate keys, a byte-order mark, NUL padding, unbounded nesting) is
// refused here, so that two programs can never read one file differently.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace baleen::checkpoint {

struct JsonLimits {
  int depth = 128;                  // objects and arrays inside each other
  std::size_t values = 16'000'000;  // of any type; about 16 bytes of memory each and more for strings
};

// `text` must start with '{' and hold one object and white space after it. Throws Error(bad_data) with `where` and what is wrong.
nlohmann::json parse_strict_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

// Text from a file as a message can show it: control characters escaped, and not longer than a line or so.
std::string printable(std::string_view text);

}  // namespace baleen::checkpoint
