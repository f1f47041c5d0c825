// Unicode normalisation form C (Unicode Standard Annex 15), through utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

// Knows which characters a normalisation leaves alone whatever stands around them, so that most text is only looked through. Immutable.
class NfcNormalizer {
 public:
  NfcNormalizer();
  // `text` with its valid UTF-8 in form C; bytes that are none stay. Where nothing changes, `memory` is not used and `text` itself comes
  // back.
  std::string_view normalize(std::string_view text, std::string& memory) const;

 private:
  bool stable(std::uint32_t point) const { return point < limit_ ? (stable_[point / 64] >> (point % 64) & 1u) != 0 : false; }
  static constexpr std::uint32_t limit_ = 0x20000;  // beyond are ideographs, rare, which utf8proc looks at
  std::vector<std::uint64_t> stable_;               // a bit a code point: in form C, no mark, and nothing that joins what stands before it
};

}  // namespace baleen
