// Cuts text into the pieces inside which byte pairs may merge, by a regular expression in PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

namespace baleen {

class Pretokenizer {
 public:
  // GPT-2's expression: A. Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.2 and its published code.
  // Without `jit` PCRE2 interprets it, as it does by itself where a system forbids executable memory: slower, with the same pieces.
  static std::shared_ptr<const Pretokenizer> gpt2(bool jit = true);
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  // Appends the end offset of each piece; the pieces follow on from each other and cover `text`. A run of bytes that are not UTF-8 is a
  // piece of its own, and nothing matches across it.
  void split(std::string_view text, std::vector<std::size_t>& ends) const;

  // The last offset in (0, size) at which a piece ends whatever precedes or follows the text, and which the text after it cannot move.
  // 0 where there is none. See Tokenizer::safe_cut.
  static std::size_t safe_cut(std::string_view text);

 private:
  struct Code;
  explicit Pretokenizer(std::unique_ptr<Code> code);
  void split_valid(std::string_view text, std::size_t offset, std::vector<std::size_t>& ends) const;

  std::unique_ptr<Code> code_;
};

}  // namespace baleen
