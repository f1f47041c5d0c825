#include "data/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/oniguruma.h"
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
  std::string where;  // for errors
  ~Code() { pcre2_code_free(compiled); }

  // What PCRE2 says is wrong with the expression, or "".
  std::string compile(std::string_view expression, bool anchor, bool with_jit) {
    int error = 0;
    PCRE2_SIZE at = 0;
    anchored = anchor;
    // split() hands over valid UTF-8 only, so that neither a check of the whole rest at each match (which would be quadratic) nor the
    // slower code of MATCH_INVALID_UTF is needed.
    const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(pcre2_compile_context_create(nullptr),
                                                                                                &pcre2_compile_context_free);
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // whatever the library was built with
    compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (anchor ? PCRE2_ANCHORED : 0u), &error, &at, context.get());
    if (compiled == nullptr) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      const std::string_view read = expression.substr(0, at);
      return std::string(reinterpret_cast<const char*>(message.data())) + ", behind \"" +
             printable(read.substr(read.size() - std::min<std::size_t>(read.size(), 40))) + "\"";
    }
    jit = with_jit && pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    return "";
  }
  // The next match from `from` on: PCRE2's answer, which is ≥ 0, or PCRE2_ERROR_NOMATCH.
  int find(std::string_view text, std::size_t from, pcre2_match_data* match) const;
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
  const std::string translated = pcre2_from_oniguruma(expression, where);
  auto code = std::make_unique<Code>();
  if (const std::string problem = code->compile(translated, /*anchor=*/false, /*with_jit=*/true); !problem.empty())
    throw Error(ExitCode::bad_data, "an expression that PCRE2 does not read: " + problem, where, other_tokenizer_files);
  code->where = where;
  const bool like_cl100k = std::find(std::begin(cl100k_like), std::end(cl100k_like), expression) != std::end(cl100k_like);
  return std::shared_ptr<const Pretokenizer>(new Pretokenizer(std::move(code), like_cl100k ? Cuts::before_space : Cuts::nowhere));
}

int Pretokenizer::Code::find(std::string_view text, std::size_t from, pcre2_match_data* match) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit) found = pcre2_jit_match(compiled, subject, text.size(), from, PCRE2_NO_UTF_CHECK, match, nullptr);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found = pcre2_match(compiled, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, nullptr);
  if (found >= 0 || found == PCRE2_ERROR_NOMATCH) return found;
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(found, message.data(), message.size());
  throw Error(ExitCode::bad_data,
              "an expression that cuts texts reached a limit of PCRE2: " + std::string(reinterpret_cast<const char*>(message.data())) +
                  ", in a text of " + std::to_string(text.size()) + " bytes at byte " + std::to_string(from),
              where, "give the text in shorter documents, or " + std::string(other_tokenizer_files).substr(std::string("give ").size()));
}

// As tokenizers goes from match to match: one of no character cuts where it is, but not where a match has just ended.
void Pretokenizer::split_valid(std::string_view text, std::size_t offset, std::vector<std::size_t>& ends,
                               std::vector<bool>* matched) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(pcre2_match_data_create(1, nullptr),
                                                                                  &pcre2_match_data_free);
  if (!match) throw std::bad_alloc();
  const PCRE2_SIZE* vector = pcre2_get_ovector_pointer(match.get());
  std::size_t at = 0, from = 0;  // the end of the last piece; where to look
  const auto piece = [&](std::size_t end, bool is_match) {
    if (end == at) return;
    ends.push_back(offset + end);
    if (matched != nullptr) matched->push_back(is_match);
    at = end;
  };
  bool first = true;
  while (from < text.size()) {
    // A match, though 0 where the expression has groups, for which `match` has no place.
    if (code_->find(text, from, match.get()) == PCRE2_ERROR_NOMATCH) break;
    const std::size_t begin = vector[0], end = vector[1];
    if (begin == end && end == at && !first) {
      from = end + std::max<std::size_t>(1, utf8_character(text.substr(end)));
      continue;
    }
    first = false;
    piece(begin, false);  // what lies between two matches
    piece(end, true);
    from = end;
  }
  // With GPT-2's every character is a letter, a number, white space or else, so some branch matches.
  BALEEN_CHECK(!code_->anchored || at == text.size(), "at", at, "of", text.size());
  piece(text.size(), false);
}

void Pretokenizer::split(std::string_view text, std::vector<std::size_t>& ends, std::vector<bool>* matched) const {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t valid = utf8_valid_prefix(text.substr(at));
    if (valid > 0) split_valid(text.substr(at, valid), at, ends, matched);
    at += valid;
    const std::size_t invalid = utf8_invalid_prefix(text.substr(at));
    if (invalid > 0) {
      ends.push_back(at + invalid);
      if (matched != nullptr) matched->push_back(false);
    }
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
