// The tokenizer `bytes`: the id is the byte's value, 256 ends a document. Needs no file, and a loss in it is bits per byte directly.
#pragma once

#include <array>

#include "data/tokenizer/tokenizer.h"

namespace baleen {

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer();
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;
  std::int32_t vocabulary_size() const override { return 257; }
  std::int32_t end_of_document() const override { return 256; }
  std::string_view kind() const override { return "bytes"; }
  std::string to_json() const override { return R"({"kind":"bytes"})"; }
  std::size_t safe_cut(std::string_view text) const override { return text.size(); }

 protected:
  std::string_view token_bytes(std::int32_t id) const override { return {bytes_.data() + id, 1}; }

 private:
  std::array<char, 256> bytes_{};  // every byte once, so that token_bytes can point at it
};

}  // namespace baleen
