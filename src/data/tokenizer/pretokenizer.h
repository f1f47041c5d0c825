// Cuts text into the pieces inside which byte pairs may merge, by a regular expression in PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baleen {

class Pretokenizer {
 public:
  // GPT-2's expression: A. Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.2 and its published code.
  // Without `jit` PCRE2 interprets it, as it does by itself where a system forbids executable memory: slower, with the same pieces.
  static std::shared_ptr<const Pretokenizer> gpt2(bool jit = true);
  // An expression of a tokenizer.json, read as Oniguruma would. What it does not match is a piece too, and a match of no character cuts.
  // Throws Error(bad_data) naming `where` where it is none, or none that is known to mean the same here; so does split() where a match
  // takes more than PCRE2 allows.
  static std::shared_ptr<const Pretokenizer> compile(std::string_view expression, const std::string& where);
  // GPT-2's expression as tokenizer.json's ByteLevel means it, and the ones that cut like cl100k_base's (Llama 3, Qwen): the expressions
  // for which it is known where a text may be cut.
  enum class Cuts { nowhere, before_space, before_white_space };
  Cuts cuts() const { return cuts_; }
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  // Appends the end offset of each piece; the pieces follow on from each other and cover `text`. A run of bytes that are not UTF-8 is a
  // piece of its own, and nothing matches across it. `matched` gets whether each is a match.
  void split(std::string_view text, std::vector<std::size_t>& ends, std::vector<bool>* matched = nullptr) const;

  // The last offset in (0, size) at which a piece ends whatever precedes or follows the text, and which the text after it cannot move.
  // 0 where there is none. See Tokenizer::safe_cut.
  static std::size_t safe_cut(std::string_view text) { return safe_cut(text, Cuts::before_white_space, text.size()); }
  // The same for expressions of a kind, below `limit`.
  static std::size_t safe_cut(std::string_view text, Cuts cuts, std::size_t limit);

 private:
  struct Code;
  Pretokenizer(std::unique_ptr<Code> code, Cuts cuts);
  void split_valid(std::string_view text, std::size_t offset, std::vector<std::size_t>& ends, std::vector<bool>* matched) const;

  std::unique_ptr<Code> code_;
  Cuts cuts_;
};

}  // namespace baleen
