#include "data/tokenizer/added_tokens.h"

#include <algorithm>

#include "data/tokenizer/utf8.h"

namespace baleen {
namespace {

// Bytes of the white-space character (Unicode's White_Space) that begins at `at`, or 0.
std::size_t white_space_at(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.empty()) return 0;
  const auto first = static_cast<unsigned char>(rest[0]);
  if (first == ' ' || (first >= '\t' && first <= '\r')) return 1;
  if (first < 0x80) return 0;
  for (const std::string_view space :
       {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"})
    if (rest.starts_with(space)) return space.size();
  const bool en_quad_and_on = rest.starts_with("\xe2\x80") && rest.size() > 2 && static_cast<unsigned char>(rest[2]) >= 0x80 &&
                              static_cast<unsigned char>(rest[2]) <= 0x8a;
  return en_quad_and_on ? 3 : 0;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (std::size_t i = 0; i < tokens_.size(); ++i) by_first_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(i);
}

void AddedTokens::split(std::string_view text, std::vector<Part>& parts) const {
  std::size_t done = 0;
  const auto find_at = [&](std::size_t at) -> const AddedToken* {
    for (const std::size_t place : by_first_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(tokens_[place].content)) return &tokens_[place];
    return nullptr;
  };
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* token = find_at(at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    if (token->strip_left)
      for (bool again = true; again && begin > done;) {  // back by whole characters of white space
        again = false;
        for (std::size_t width = 1; width <= 3 && width <= begin - done && !again; ++width)
          if (white_space_at(text, begin - width) == width) begin -= width, again = true;
      }
    if (token->strip_right)
      for (std::size_t width = white_space_at(text, end); width > 0; width = white_space_at(text, end)) end += width;
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token->id});
    done = at = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
}

bool AddedTokens::may_divide(std::string_view text, std::size_t at) const {
  const std::string_view before = text.substr(0, at);
  for (const AddedToken& token : tokens_) {
    if (token.strip_right && before.ends_with(token.content)) return true;
    for (std::size_t length = 1; length < token.content.size(); ++length)
      if (token.content[length] == text[at] && before.ends_with(std::string_view(token.content).substr(0, length))) return true;
  }
  return false;
}

}  // namespace baleen
