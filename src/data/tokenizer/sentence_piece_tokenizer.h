// The tokenizer `sentencepiece`: a .model file of SentencePiece (https://github.com/google/sentencepiece), through its library, as Llama 2
// and Mistral have it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace baleen {

// Whether a file could be a SentencePiece model: a protobuf message whose first field is a piece.
bool looks_like_sentence_piece(std::string_view content);

class SentencePieceTokenizer : public Tokenizer {
 public:
  // `content` is the file. EOS ends a document, BOS, where there is one, begins it. Throws Error(bad_data) naming `where`.
  SentencePieceTokenizer(std::string content, const std::string& where);
  ~SentencePieceTokenizer() override;

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::int32_t vocabulary_size() const override { return static_cast<std::int32_t>(bytes_.size()); }
  std::int32_t end_of_document() const override { return end_of_document_; }
  std::vector<std::int32_t> beginning() const override { return beginning_; }
  std::string_view kind() const override { return "sentencepiece"; }
  // {"kind":"sentencepiece","file":"the file in base64"}
  std::string to_json() const override;
  std::map<std::string, std::string> files() const override { return {{"tokenizer.model", content_}}; }
  // A text by itself has a space in front that a part of a text has not.
  std::size_t safe_cut(std::string_view) const override { return 0; }

 protected:
  std::string_view token_bytes(std::int32_t id) const override { return bytes_[static_cast<std::size_t>(id)]; }
  bool adds_space() const override { return adds_space_; }

 private:
  // The library's ids of a whole text; `own` is memory to reuse.
  void encode_whole(std::string_view text, std::vector<int>& own, std::vector<std::int32_t>& ids) const;

  struct Library;
  std::string content_;
  std::unique_ptr<Library> library_;
  std::vector<std::string> bytes_;  // by id
  std::vector<std::int32_t> beginning_;
  std::int32_t end_of_document_ = -1;
  bool adds_space_ = false;
  bool words_are_apart_ = false;  // no id covers parts of two words
};

}  // namespace baleen
