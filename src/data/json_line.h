// One field of one line of a .jsonl file.
#pragma once

#include <string>
#include <string_view>

namespace baleen {

inline constexpr int max_json_depth = 64;

// The text under the key `field` of the JSON object in `line`. Reads the line once without building it in memory. Throws Error(bad_data)
// naming `where` (file and line) where the line is not one JSON object (RFC 8259: also NUL bytes, invalid UTF-8 and trailing content),
// nests deeper than max_json_depth, or the field is missing, there twice, or not text.
std::string json_text_field(std::string_view line, const std::string& field, const std::string& where);

}  // namespace baleen
