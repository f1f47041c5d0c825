// Tokens that are found in a text before anything else looks at it: special tokens and others that were added to a vocabulary.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;  // not empty
  bool special = false;
  bool normalized = false;                       // found in the normalised text
  bool strip_left = false, strip_right = false;  // takes the white space on that side along
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // A part of a text: a token (id ≥ 0), or what lies between two.
  struct Part {
    std::size_t begin = 0, end = 0;
    std::int32_t id = -1;
  };
  // Cuts a text at its tokens, the leftmost first, of those that begin at one place the longest. Parts are not empty.
  void split(std::string_view text, std::vector<Part>& parts) const;

  bool empty() const { return tokens_.empty(); }
  std::size_t longest() const { return tokens_.empty() ? 0 : tokens_.front().content.size(); }  // bytes
  // Whether a cut of the text at `at`, in front of white space, could divide a token or take from it white space that belongs to it.
  bool may_divide(std::string_view text, std::size_t at) const;

 private:
  std::vector<AddedToken> tokens_;                      // longest first
  std::array<std::vector<std::size_t>, 256> by_first_;  // by first byte: places in tokens_, in that order
};

}  // namespace baleen
