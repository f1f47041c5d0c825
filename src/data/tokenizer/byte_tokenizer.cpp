#include "data/tokenizer/byte_tokenizer.h"

namespace baleen {

ByteTokenizer::ByteTokenizer() {
  for (std::size_t value = 0; value < bytes_.size(); ++value) bytes_[value] = static_cast<char>(value);
}

void ByteTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::size_t start = ids.size();
  ids.resize(start + text.size());
  for (std::size_t i = 0; i < text.size(); ++i) ids[start + i] = static_cast<unsigned char>(text[i]);
}

}  // namespace baleen
