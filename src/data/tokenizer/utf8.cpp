#include "data/tokenizer/utf8.h"

#include <cstdint>
#include <cstring>

namespace baleen {

std::size_t utf8_character(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0u) != 0x80) return 0;
  const unsigned second = byte(1);               // its range is narrower after four of the first bytes (RFC 3629 section 4)
  if (first == 0xe0 && second < 0xa0) return 0;  // overlong
  if (first == 0xed && second > 0x9f) return 0;  // surrogate
  if (first == 0xf0 && second < 0x90) return 0;  // overlong
  if (first == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return length;
}

std::size_t utf8_valid_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const std::size_t length = utf8_character(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::size_t utf8_invalid_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && utf8_character(text.substr(at)) == 0) ++at;
  return at;
}

}  // namespace baleen
