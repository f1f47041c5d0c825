// The tokenizer `llama2c`: llama2.c's tokenizer.bin (https://github.com/karpathy/llama2.c), a SentencePiece byte-pair vocabulary with
// scores.
//
// Ids 0, 1, 2 are <unk>, BOS and EOS, ids 3 … 258 the bytes, the others pieces of text. A text gets a space in front of it, falls into
// UTF-8 characters (bytes where a character is no piece), and then the adjacent pair whose union has the best score merges, the leftmost of
// equals, until no union is a piece. BOS precedes a text and so stands between documents: it is end_of_document().
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace baleen {

// Whether a file starts as llama2.c's tokenizers do.
bool looks_like_llama2c_tokenizer(std::string_view content);

class Llama2cTokenizer : public Tokenizer {
 public:
  // `content` is a tokenizer.bin: int32 longest piece; for each id fp32 score, int32 length, the bytes. Throws Error(bad_data) naming
  // `where` when it is truncated, has a length or score that cannot be, or lacks the 256 bytes.
  Llama2cTokenizer(std::string content, const std::string& where);
  Llama2cTokenizer(const Llama2cTokenizer&) = delete;
  Llama2cTokenizer& operator=(const Llama2cTokenizer&) = delete;

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::int32_t vocabulary_size() const override { return static_cast<std::int32_t>(pieces_.size()); }
  std::int32_t end_of_document() const override { return 1; }
  bool marks_beginning() const override { return true; }
  std::string_view kind() const override { return "llama2c"; }
  // {"kind":"llama2c","file":"the file in base64"}
  std::string to_json() const override;
  // Every encode() puts a space in front, so no text can be cut.
  std::size_t safe_cut(std::string_view) const override { return 0; }

 protected:
  std::string_view token_bytes(std::int32_t id) const override { return pieces_[static_cast<std::size_t>(id)]; }

 private:
  // The piece of text with these bytes, or -1; never a special or a byte token.
  std::int32_t find(std::string_view bytes) const;
  void append_characters(std::string_view text, std::vector<std::int32_t>& ids) const;
  void merge(std::vector<std::int32_t>& ids) const;

  std::string content_;
  std::vector<std::string_view> pieces_;  // the bytes that an id stands for: into content_ or all_bytes_
  std::vector<float> scores_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::string all_bytes_;  // every byte once
};

}  // namespace baleen
