// Base64 of RFC 4648 section 4 (the alphabet with + and /, padded).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baleen {

// Nothing where `text` is not exactly what an encoder writes: a foreign character, a wrong length, misplaced padding, spare bits set.
std::optional<std::string> decode_base64(std::string_view text);
std::string encode_base64(std::string_view bytes);

}  // namespace baleen
