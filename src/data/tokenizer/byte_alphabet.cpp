#include "data/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace baleen {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<std::uint16_t, 256> points{};  // by byte
  std::array<std::int16_t, 0x180> bytes{};  // by code point; -1: none
  constexpr Alphabet() {
    bytes.fill(-1);
    std::uint16_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const std::uint16_t point = stands_for_itself(byte) ? static_cast<std::uint16_t>(byte) : next++;
      points[static_cast<std::size_t>(byte)] = point;
      bytes[point] = static_cast<std::int16_t>(byte);
    }
  }
};
constexpr Alphabet alphabet;

}  // namespace

std::optional<std::string> decode_byte_characters(std::string_view entry) {
  std::string bytes;
  for (std::size_t at = 0; at < entry.size();) {
    const auto first = static_cast<unsigned char>(entry[at]);
    std::size_t point = first;
    if (first >= 0x80) {
      if (first < 0xc2 || first > 0xc5 || at + 1 >= entry.size()) return std::nullopt;  // beyond U+017F
      point = (first & 0x1fu) << 6 | (static_cast<unsigned char>(entry[at + 1]) & 0x3fu);
    }
    if (alphabet.bytes[point] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet.bytes[point]);
    at += first < 0x80 ? 1 : 2;
  }
  return bytes;
}

std::string encode_byte_characters(std::string_view bytes) {
  std::string entry;
  for (const char byte : bytes) {
    const std::uint16_t point = alphabet.points[static_cast<unsigned char>(byte)];
    if (point < 0x80) {
      entry += static_cast<char>(point);
    } else {
      entry += static_cast<char>(0xc0 | point >> 6);
      entry += static_cast<char>(0x80 | (point & 0x3f));
    }
  }
  return entry;
}

}  // namespace baleen
