#include "data/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace baleen {
namespace {

// White space is Unicode's White_Space, as in the regex engines of the original: PCRE2's own \s also takes U+180E. Possessive repeats
// match the same as GPT-2's plain ones, because what follows each of them never starts with what it repeats.
constexpr std::string_view gpt2_expression =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\p{WSpace}\p{L}\p{N}]++|\p{WSpace}+(?!\P{WSpace})|\p{WSpace}+)";

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Whether text ends in the bytes of a character of White_Space (judged by bytes alone: a false yes only moves a cut).
bool ends_in_space(std::string_view text) {
  if (is_ascii_space(text.back())) return true;
  if (static_cast<unsigned char>(text.back()) < 0x80) return false;
  constexpr std::array<std::string_view, 6> spaces{"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80", "\xe2\x81\x9f", "\xe3\x80\x80"};
  for (const std::string_view space : spaces) {
    // U+2000 … U+203F share two bytes; some are spaces, and none is worth a cut.
    const std::string_view tail = space == "\xe2\x80" && text.size() >= 3 ? text.substr(text.size() - 3, 2)
                                                                          : text.substr(text.size() - std::min(space.size(), text.size()));
    if (tail == space) return true;
  }
  return false;
}

}  // namespace

struct Pretokenizer::Code {
  pcre2_code* compiled = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(compiled); }
};

Pretokenizer::Pretokenizer(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Pretokenizer::~Pretokenizer() = default;

std::shared_ptr<const Pretokenizer> Pretokenizer::gpt2(bool jit) {
  auto code = std::make_unique<Code>();
  int error = 0;
  PCRE2_SIZE at = 0;
  // split() hands over valid UTF-8 only, so that neither a check of the whole rest at each match (which would be quadratic) nor the
  // slower code of MATCH_INVALID_UTF is needed.
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(gpt2_expression.data()), gpt2_expression.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, nullptr);
  BALEEN_CHECK(code->compiled != nullptr, "pcre2_compile", error, "at", at);
  code->jit = jit && pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE) == 0;
  return std::shared_ptr<const Pretokenizer>(new Pretokenizer(std::move(code)));
}

void Pretokenizer::split_valid(std::string_view text, std::size_t offset, std::vector<std::size_t>& ends) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  &pcre2_match_data_free);
  if (!match) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* vector = pcre2_get_ovector_pointer(match.get());
  std::size_t at = 0;
  while (at < text.size()) {
    const int found = code_->jit ? pcre2_jit_match(code_->compiled, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr)
                                 : pcre2_match(code_->compiled, subject, text.size(), at, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    // Every character is a letter, a number, white space or else, so some branch matches; anything less is a resource limit of PCRE2.
    BALEEN_CHECK(found > 0 && vector[1] > at, "pcre2_match", found, "at", at, "of", text.size());
    at = vector[1];
    ends.push_back(offset + at);
  }
}

void Pretokenizer::split(std::string_view text, std::vector<std::size_t>& ends) const {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t valid = utf8_valid_prefix(text.substr(at));
    if (valid > 0) split_valid(text.substr(at, valid), at, ends);
    at += valid;
    const std::size_t invalid = utf8_invalid_prefix(text.substr(at));
    if (invalid > 0) ends.push_back(at + invalid);
    at += invalid;
  }
}

// A cut between a and b, a no white space and b ASCII white space. No branch of the expression holds white space after something else, so
// a piece ends between a and b whatever surrounds them. The text before the cut splits as it does in the whole: the only look-ahead asks
// for the character after a run of white space, and the last such run ends before a. The text after it does, because nothing looks back.
// Bytes that are not UTF-8 end in front of b as well, for b is a character by itself.
std::size_t Pretokenizer::safe_cut(std::string_view text) {
  for (std::size_t at = text.size(); at-- > 1;)
    if (is_ascii_space(text[at]) && !ends_in_space(text.substr(0, at))) return at;
  return 0;
}

}  // namespace baleen
