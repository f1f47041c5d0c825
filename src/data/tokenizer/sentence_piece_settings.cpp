#include "data/tokenizer/sentence_piece_settings.h"

#include <cstdint>
#include <optional>

namespace baleen {
namespace {

struct Field {
  std::uint64_t number = 0;
  std::uint64_t value = 0;   // of a varint
  std::string_view content;  // of a message, a string or bytes
};

// The fields of one message, one after another.
class MessageReader {
 public:
  explicit MessageReader(std::string_view message) : rest_(message) {}

  // Nothing at the end, and where the bytes are no field.
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field;
    field.number = *key >> 3;
    switch (*key & 7u) {
      case 0: {
        const auto value = varint();
        if (!value) return std::nullopt;
        field.value = *value;
        return field;
      }
      case 1: return skip(8) ? std::optional(field) : std::nullopt;
      case 2: {
        const auto length = varint();
        if (!length || *length > rest_.size()) return std::nullopt;
        field.content = rest_.substr(0, static_cast<std::size_t>(*length));
        skip(field.content.size());
        return field;
      }
      case 5: return skip(4) ? std::optional(field) : std::nullopt;
      default: return std::nullopt;
    }
  }

 private:
  std::optional<std::uint64_t> varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80u) return value;
    }
    return std::nullopt;
  }

  bool skip(std::size_t bytes) {
    if (bytes > rest_.size()) return false;
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
};

}  // namespace

SentencePieceSettings read_sentence_piece_settings(std::string_view model) {
  constexpr std::uint64_t trainer_spec = 2, normalizer_spec = 3, byte_pair_model = 2;
  SentencePieceSettings settings;
  MessageReader fields(model);
  while (const auto field = fields.next()) {
    MessageReader inner(field->content);
    if (field->number == trainer_spec) {
      while (const auto of = inner.next()) {
        if (of->number == 3) settings.byte_pairs = of->value == byte_pair_model;
        if (of->number == 24) settings.space_is_suffix = of->value != 0;
      }
    } else if (field->number == normalizer_spec) {
      while (const auto of = inner.next()) {
        if (of->number == 2) settings.rewrites_characters = !of->content.empty();
        if (of->number == 4) settings.removes_extra_spaces = of->value != 0;
        if (of->number == 5) settings.escapes_spaces = of->value != 0;
      }
    }
  }
  return settings;
}

}  // namespace baleen
