#include "data/tokenizer/sentence_piece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/base64.h"

namespace baleen {
namespace {

constexpr std::string_view visible_space = "\xe2\x96\x81";  // U+2581, which stands for a space

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (std::size_t at = 0; at < piece.size();) {
    const bool space = piece.substr(at).starts_with(visible_space);
    text += space ? ' ' : piece[at];
    at += space ? visible_space.size() : 1;
  }
  return text;
}

}  // namespace

struct SentencePieceTokenizer::Library {
  sentencepiece::SentencePieceProcessor processor;
};

// ModelProto's field 1 (a piece) is a message, and so is the piece's own beginning: its text is field 1 too.
bool looks_like_sentence_piece(std::string_view content) {
  return content.size() > 4 && content[0] == '\x0a' && content[2] == '\x0a';
}

SentencePieceTokenizer::SentencePieceTokenizer(std::string content, const std::string& where)
    : content_(std::move(content)), library_(std::make_unique<Library>()) {
  const auto status = library_->processor.LoadFromSerializedProto(content_);
  if (!status.ok())
    throw Error(ExitCode::bad_data, "SentencePiece does not read the model: " + status.ToString(), where,
                "take tokenizer.model from the model's own folder again");
  const auto& processor = library_->processor;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    if (processor.IsControl(id))
      bytes_.emplace_back();
    else if (processor.IsByte(id))  // "<0x0A>"
      bytes_.emplace_back(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
    else if (processor.IsUnknown(id))
      bytes_.emplace_back(" \xe2\x81\x87 ");  // as the library shows it
    else
      bytes_.push_back(with_spaces(piece));
  }
  end_of_document_ = processor.eos_id();
  if (end_of_document_ < 0)
    throw Error(ExitCode::bad_data, "the SentencePiece model has no end token (eos_id)", where, "use a model that was trained with one");
  if (processor.bos_id() >= 0) beginning_ = {processor.bos_id()};
  std::vector<int> letter;
  processor.Encode("a", &letter).IgnoreError();
  adds_space_ = !letter.empty() && bytes_[static_cast<std::size_t>(letter[0])].starts_with(' ');
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<int> own;
  const auto status = library_->processor.Encode(text, &own);
  BALEEN_CHECK(status.ok(), status.ToString());
  ids.insert(ids.end(), own.begin(), own.end());
}

std::string SentencePieceTokenizer::to_json() const {
  return dump_json(nlohmann::json{{"kind", kind()}, {"file", encode_base64(content_)}});
}

}  // namespace baleen
