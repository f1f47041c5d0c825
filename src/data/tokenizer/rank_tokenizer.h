// The tokenizer `tiktoken`: byte-level BPE from a rank file, pre-tokenised with GPT-2's expression. The id after the last rank ends a
// document (GPT-2: <|endoftext|> = 50256, vocabulary 50257).
#pragma once

#include "data/tokenizer/byte_pair_encoder.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"

namespace baleen {

class RankTokenizer : public Tokenizer {
 public:
  // `tokens` as parse_rank_file() gives them; `where` names their source in errors. Throws Error(bad_data) where the number of ranks is
  // that of a published vocabulary with another expression than GPT-2's, because the ids would be wrong without a sign of it.
  RankTokenizer(TokenTable tokens, const std::string& where);
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::int32_t vocabulary_size() const override { return encoder_.tokens().size() + 1; }
  std::int32_t end_of_document() const override { return encoder_.tokens().size(); }
  std::string_view kind() const override { return "tiktoken"; }
  // {"kind":"tiktoken","pattern":"gpt2","ranks":"the rank file"}
  std::string to_json() const override;
  std::size_t safe_cut(std::string_view text) const override { return Pretokenizer::safe_cut(text); }

 protected:
  std::string_view token_bytes(std::int32_t id) const override { return encoder_.tokens().bytes(id); }

 private:
  std::shared_ptr<const Pretokenizer> pretokenizer_;
  BytePairEncoder encoder_;
};

}  // namespace baleen
