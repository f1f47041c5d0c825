// Where a text is valid UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <string_view>

namespace baleen {

// Bytes of the character at the start of `text`: 1 to 4, or 0 where no valid character starts there.
std::size_t utf8_character(std::string_view text);

// Bytes of the longest valid prefix.
std::size_t utf8_valid_prefix(std::string_view text);

// Bytes of the longest prefix in which no valid character starts.
std::size_t utf8_invalid_prefix(std::string_view text);

}  // namespace baleen
