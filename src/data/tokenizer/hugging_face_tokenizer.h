// The tokenizer `huggingface`: a tokenizer.json of byte-level byte-pair encoding, with the files that lie beside it in a model's folder.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/byte_pair_encoder.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/pretokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace baleen {

// As `tokenizers` encodes: added tokens are found in the text first (the text of a special token becomes its id), then the text between
// them is normalised, cut and merged. So encode() can give end_of_document(), and a text that is not in form C does not come back as it
// was where the tokenizer normalises.
class HuggingFaceTokenizer : public Tokenizer {
 public:
  // `files` by name, tokenizer.json among them. A document ends with <|endoftext|>, <|end_of_text|> or </s>, whichever is there, otherwise
  // with tokenizer_config.json's eos_token. Throws Error(bad_data) naming `where`.
  HuggingFaceTokenizer(const std::map<std::string, std::string>& files, const std::string& where);

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::int32_t vocabulary_size() const override { return static_cast<std::int32_t>(bytes_.size()); }
  std::int32_t end_of_document() const override { return end_of_document_; }
  std::vector<std::int32_t> beginning() const override { return beginning_; }
  std::string_view kind() const override { return "huggingface"; }
  // {"kind":"huggingface","files":{"tokenizer.json":"…", …}}
  std::string to_json() const override;
  std::map<std::string, std::string> files() const override { return files_; }
  std::size_t safe_cut(std::string_view text) const override;

 protected:
  std::string_view token_bytes(std::int32_t id) const override { return bytes_[static_cast<std::size_t>(id)]; }

 private:
  struct Step {
    std::shared_ptr<const Pretokenizer> expression;
    bool digits = false;
    PretokenizerStep::Keeps keeps = PretokenizerStep::Keeps::everything;
  };
  struct Scratch;
  HuggingFaceTokenizer(TokenizerJson described, std::map<std::string, std::string> files, const std::string& where);
  static BytePairEncoder make_encoder(const TokenizerJson& described, std::vector<std::int32_t>& ids, const std::string& where);
  void check_declared(const TokenizerJson& described, const std::string& where) const;
  void choose_end_of_document(const TokenizerJson& described, const std::string& where);
  bool may_divide_token(std::string_view text, std::size_t at) const;
  // The encoder's ids of a piece that the first `step` steps have cut.
  void encode_piece(std::string_view piece, std::size_t step, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_plain(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  std::map<std::string, std::string> files_;
  std::vector<std::string> bytes_;  // by id
  std::vector<std::int32_t> ids_;   // of the encoder's tokens
  BytePairEncoder encoder_;
  std::shared_ptr<const NfcNormalizer> nfc_;  // nullptr: none
  AddedTokens raw_, normalized_;              // found before and after normalising; the latter's texts are normalised too
  std::vector<Step> steps_;
  std::vector<std::int32_t> beginning_;
  std::int32_t end_of_document_ = -1;
};

}  // namespace baleen
