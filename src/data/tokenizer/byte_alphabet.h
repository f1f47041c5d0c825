// The printable characters that stand for bytes in a byte-level vocabulary (GPT-2's published code): printable ASCII and Latin-1 for
// themselves, the other bytes in their order for U+0100 and on.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace baleen {

// The bytes that a vocabulary entry stands for; nothing where a character of it stands for none.
std::optional<std::string> decode_byte_characters(std::string_view entry);
// The entry for bytes.
std::string encode_byte_characters(std::string_view bytes);

}  // namespace baleen
