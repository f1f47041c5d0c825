#include "data/tokenizer/sentence_piece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/base64.h"
#include "data/tokenizer/sentence_piece_settings.h"

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

// Whether a piece has a space behind something else, so that it could cover parts of two words.
bool spans_words(std::string_view piece) {
  while (piece.starts_with(visible_space)) piece.remove_prefix(visible_space.size());
  return piece.find(visible_space) != std::string_view::npos || piece.find(' ') != std::string_view::npos;
}

// Where the next word begins behind `at`: at a space that follows no space and is not the last character; else the end.
std::size_t next_word(std::string_view text, std::size_t at) {
  for (std::size_t space = text.find(' ', at + 1); space != std::string_view::npos && space + 1 < text.size();
       space = text.find(' ', space + 1))
    if (text[space - 1] != ' ' && !text.substr(0, space).ends_with(visible_space)) return space;
  return text.size();
}

// The byte that a piece such as "<0x0A>" stands for.
char byte_of(const std::string& piece, const std::string& where) {
  unsigned value = 0;
  const char* const end = piece.data() + piece.size();
  const bool framed = piece.size() == 6 && piece.starts_with("<0x") && piece.back() == '>';
  if (!framed || std::from_chars(piece.data() + 3, end - 1, value, 16).ptr != end - 1)
    throw Error(ExitCode::bad_data, "malformed SentencePiece model: the byte piece '" + printable(piece) + "' is not of the form <0x0A>",
                where, "take tokenizer.model from the model's own folder again");
  return static_cast<char>(value);
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
  constexpr const char* remedy = "take tokenizer.model from the model's own folder again";
  std::string problem;
  try {
    const auto status = library_->processor.LoadFromSerializedProto(content_);
    if (!status.ok()) problem = status.ToString();
  } catch (const std::exception& error) {  // of the trie that the library makes of the pieces
    problem = error.what();
  }
  if (!problem.empty()) throw Error(ExitCode::bad_data, "SentencePiece does not read the model: " + problem, where, remedy);
  const auto& processor = library_->processor;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    const std::string& piece = processor.IdToPiece(id);
    if (processor.IsControl(id))
      bytes_.emplace_back();
    else if (processor.IsByte(id))
      bytes_.emplace_back(1, byte_of(piece, where));
    else if (processor.IsUnknown(id))
      bytes_.emplace_back(" \xe2\x81\x87 ");  // as the library shows it
    else
      bytes_.push_back(with_spaces(piece));
  }
  end_of_document_ = processor.eos_id();
  if (end_of_document_ < 0)
    throw Error(ExitCode::bad_data, "the SentencePiece model has no end token (eos_id)", where, "use a model that was trained with one");
  if (processor.bos_id() >= 0) beginning_ = {processor.bos_id()};
  const SentencePieceSettings settings = read_sentence_piece_settings(content_);
  words_are_apart_ = settings.byte_pairs && !settings.space_is_suffix && !settings.rewrites_characters && !settings.removes_extra_spaces &&
                     settings.escapes_spaces && !processor.IsUnknown(processor.PieceToId(visible_space));
  for (int id = 0; id < processor.GetPieceSize() && words_are_apart_; ++id) words_are_apart_ = !spans_words(processor.IdToPiece(id));
  std::vector<int> letter;
  processor.Encode("a", &letter).IgnoreError();
  adds_space_ = !letter.empty() && bytes_[static_cast<std::size_t>(letter[0])].starts_with(' ');
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::encode_whole(std::string_view text, std::vector<int>& own, std::vector<std::int32_t>& ids) const {
  const auto status = library_->processor.Encode(text, &own);
  if (!status.ok())
    throw Error(ExitCode::bad_data, "SentencePiece does not encode with this model: " + status.ToString(), "tokenizer sentencepiece",
                "take tokenizer.model from the model's own folder again");
  ids.insert(ids.end(), own.begin(), own.end());
}

// The library takes a text as one: its time grows faster than the text, and it does a word again each time. Byte pairs never merge over a
// border that no piece covers, so the ids of words one by one are those of the text. Of a word inside it, the library itself puts the space
// in front.
void SentencePieceTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<int> own;
  if (!words_are_apart_) return encode_whole(text, own, ids);
  struct Range {
    std::size_t begin, end;
  };
  std::unordered_map<std::string_view, Range> known;  // where in `ids` a word has been before
  for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    end = next_word(text, begin);
    std::string_view word = text.substr(begin, end - begin);
    if (begin > 0 && adds_space_) word.remove_prefix(1);
    const auto [position, fresh] = known.try_emplace(word, Range{ids.size(), 0});
    Range& range = position->second;
    if (fresh) {
      encode_whole(word, own, ids);
      range.end = ids.size();
    } else {
      for (std::size_t at = range.begin; at < range.end; ++at) ids.push_back(std::int32_t{ids[at]});
    }
  }
}

std::string SentencePieceTokenizer::to_json() const {
  return dump_json(nlohmann::json{{"kind", kind()}, {"file", encode_base64(content_)}});
}

}  // namespace baleen
