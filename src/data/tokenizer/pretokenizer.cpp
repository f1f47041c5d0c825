#include "data/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/tokenizer/utf8.h"

namespace baleen {
namespace {

// White space is Unicode's White_Space, as in the regex engines of the original: PCRE2's own \s also takes U+180E. Possessive repeats
// match the same as GPT-2's plain ones, because what follows each of them never starts with what it repeats.
constexpr std::string_view gpt2_expression =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\p{WSpace}\p{L}\p{N}]++|\p{WSpace}+(?!\P{WSpace})|\p{WSpace}+)";

// The same as tokenizer.json has it, and Llama 3's and Qwen's.
constexpr std::string_view gpt2_published = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view cl100k_like[]{
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

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
  bool jit = false, anchored = false;
  ~Code() { pcre2_code_free(compiled); }

  // What PCRE2 says is wrong with the expression, or "".
  std::string compile(std::string_view expression, bool anchor, bool with_jit) {
    int error = 0;
    PCRE2_SIZE at = 0;
    anchored = anchor;
    // split() hands over valid UTF-8 only, so that neither a check of the whole rest at each match (which would be quadratic) nor the
    // slower code of MATCH_INVALID_UTF is needed.
    compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (anchor ? PCRE2_ANCHORED : 0u), &error, &at, nullptr);
    if (compiled == nullptr) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      return std::string(reinterpret_cast<const char*>(message.data())) + " at character " + std::to_string(at);
    }
    jit = with_jit && pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    return "";
  }
};

Pretokenizer::Pretokenizer(std::unique_ptr<Code> code, Cuts cuts) : code_(std::move(code)), cuts_(cuts) {}
Pretokenizer::~Pretokenizer() = default;

std::shared_ptr<const Pretokenizer> Pretokenizer::gpt2(bool jit) {
  auto code = std::make_unique<Code>();
  const std::string problem = code->compile(gpt2_expression, /*anchor=*/true, jit);
  BALEEN_CHECK(problem.empty(), problem);
  return std::shared_ptr<const Pretokenizer>(new Pretokenizer(std::move(code), Cuts::before_white_space));
}

std::shared_ptr<const Pretokenizer> Pretokenizer::compile(std::string_view expression, const std::string& where) {
  if (expression == gpt2_published) return gpt2();
  std::string translated;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const std::string_view two = expression.substr(i, 2);
    if (two.size() == 2 && two[0] == '\\') {
      translated += two == "\\s" ? "\\p{WSpace}" : two == "\\S" ? "\\P{WSpace}" : two;
      ++i;
    } else {
      translated += expression[i];
    }
  }
  auto code = std::make_unique<Code>();
  if (const std::string problem = code->compile(translated, /*anchor=*/false, /*with_jit=*/true); !problem.empty())
    throw Error(ExitCode::bad_data, "an expression that PCRE2 does not read: " + problem, where,
                "take tokenizer.json from the model's own folder again");
  const bool like_cl100k = std::find(std::begin(cl100k_like), std::end(cl100k_like), expression) != std::end(cl100k_like);
  return std::shared_ptr<const Pretokenizer>(new Pretokenizer(std::move(code), like_cl100k ? Cuts::before_space : Cuts::nowhere));
}

void Pretokenizer::split_valid(std::string_view text, std::size_t offset, std::vector<std::size_t>& ends) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  &pcre2_match_data_free);
  if (!match) throw std::bad_alloc();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* vector = pcre2_get_ovector_pointer(match.get());
  std::size_t at = 0, from = 0;  // the end of the last piece; where to look
  while (at < text.size()) {
    int found = PCRE2_ERROR_JIT_STACKLIMIT;
    if (code_->jit) found = pcre2_jit_match(code_->compiled, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code_->compiled, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH && !code_->anchored) {
      ends.push_back(offset + text.size());
      return;
    }
    // With GPT-2's every character is a letter, a number, white space or else, so some branch matches; anything less is a limit of PCRE2.
    BALEEN_CHECK(found > 0, "pcre2_match", found, "at", at, "of", text.size());
    if (vector[1] == vector[0]) {  // matches nothing here: on by a character
      from = vector[1] + std::max<std::size_t>(1, utf8_character(text.substr(vector[1])));
      if (from < text.size()) continue;
      ends.push_back(offset + text.size());
      return;
    }
    if (vector[0] > at) ends.push_back(offset + vector[0]);  // what lies between two matches
    at = from = vector[1];
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
// Expressions like cl100k_base's let line ends follow a sign in one piece, but not spaces and tabs.
std::size_t Pretokenizer::safe_cut(std::string_view text, Cuts cuts, std::size_t limit) {
  if (cuts == Cuts::nowhere) return 0;
  for (std::size_t at = std::min(limit, text.size()); at-- > 1;) {
    const bool here = cuts == Cuts::before_space ? text[at] == ' ' || text[at] == '\t' : is_ascii_space(text[at]);
    if (here && !ends_in_space(text.substr(0, at))) return at;
  }
  return 0;
}

}  // namespace baleen
