#include "data/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include "data/tokenizer/utf8.h"

namespace baleen {
namespace {

constexpr std::uint32_t first_surrogate = 0xd800, last_surrogate = 0xdfff;

// The canonical decomposition of one code point into `out`; how many.
utf8proc_ssize_t decompose(std::uint32_t point, std::array<utf8proc_int32_t, 16>& out) {
  int last = 0;
  return utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point), out.data(), static_cast<utf8proc_ssize_t>(out.size()),
                                 UTF8PROC_DECOMPOSE, &last);
}

std::uint32_t decode_point(std::string_view character) {
  utf8proc_int32_t point = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(character.data()), static_cast<utf8proc_ssize_t>(character.size()), &point);
  return static_cast<std::uint32_t>(point);
}

// Appends form C of valid UTF-8.
void append_normalized(std::string_view text, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, &std::free);
  if (length < 0) throw std::bad_alloc();  // valid UTF-8 fails for nothing else
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length));
}

}  // namespace

// A character is stable when it has no combining class, is what its decomposition composes to, and is no second half of a composition.
NfcNormalizer::NfcNormalizer() : stable_(limit_ / 64, ~std::uint64_t{0}) {
  const auto clear = [&](std::uint32_t point) {
    if (point < limit_) stable_[point / 64] &= ~(std::uint64_t{1} << (point % 64));
  };
  for (std::uint32_t point = 0x1161; point <= 0x11c2; ++point) clear(point);  // vowels and finals of Hangul, which join by rule
  std::array<utf8proc_int32_t, 16> parts{};
  for (std::uint32_t point = 0xc0; point < limit_; ++point) {
    // Ideographs and Hangul syllables are many and all stable; between them lie marks.
    if ((point >= 0x4e00 && point <= 0x9fff) || (point >= 0xac00 && point <= 0xd7a3)) continue;
    if (point >= first_surrogate && point <= last_surrogate) continue;
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(point));
    if (property->combining_class != 0) clear(point);
    const utf8proc_ssize_t count = decompose(point, parts);
    if (count == 1 && static_cast<std::uint32_t>(parts[0]) == point) continue;
    for (utf8proc_ssize_t i = 1; i < count; ++i) clear(static_cast<std::uint32_t>(parts[static_cast<std::size_t>(i)]));
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto length = static_cast<std::size_t>(utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes.data()));
    const std::string_view character(reinterpret_cast<const char*>(bytes.data()), length);
    std::string composed;
    append_normalized(character, composed);
    if (composed != character) clear(point);
  }
}

std::string_view NfcNormalizer::normalize(std::string_view text, std::string& memory) const {
  std::size_t copied = 0;   // of text, into memory
  std::size_t starter = 0;  // where the last stable character begins: what follows may join it
  bool changed = false;
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      starter = at++;
      continue;
    }
    const std::size_t length = utf8_character(text.substr(at));
    if (length == 0 || stable(decode_point(text.substr(at, length)))) {
      starter = at;
      at += length == 0 ? 1 : length;
      if (length == 0) starter = at;  // nothing joins a byte that is no character
      continue;
    }
    // From the last stable character to the next one.
    std::size_t end = at + length;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) {
      const std::size_t next = utf8_character(text.substr(end));
      if (next == 0 || stable(decode_point(text.substr(end, next)))) break;
      end += next;
    }
    if (!changed) memory.clear();
    changed = true;
    const std::size_t begin = std::max(starter, copied);
    memory.append(text.substr(copied, begin - copied));
    append_normalized(text.substr(begin, end - begin), memory);
    copied = starter = at = end;
  }
  if (!changed) return text;
  memory.append(text.substr(copied));
  return memory;
}

}  // namespace baleen
