#include "data/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/foreign_file.h"
#include "data/tokenizer/base64.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/llama2c_tokenizer.h"
#include "data/tokenizer/rank_file.h"
#include "data/tokenizer/rank_tokenizer.h"
#include "data/tokenizer/sentence_piece_tokenizer.h"
#include "data/tokenizer/tokenizer_folder.h"

namespace baleen {
namespace {

constexpr const char* accepted =
    "give `bytes`, a tiktoken rank file with GPT-2's ranks, a tokenizer.bin of llama2.c, a tokenizer.json or tokenizer.model, a model's "
    "folder, or the .json beside a token file that `baleen tokenize` wrote";
constexpr std::size_t max_tokenizer_bytes = std::size_t{256} << 20;

const std::string& string_member(const nlohmann::json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    throw Error(ExitCode::bad_data, std::string("not a tokenizer of baleen's: no text under \"") + key + "\"", where, accepted);
  return found->get_ref<const std::string&>();
}

std::shared_ptr<const Tokenizer> hugging_face_from_json(const nlohmann::json& json, const std::string& where) {
  std::map<std::string, std::string> files;
  if (json.contains("files") && json["files"].is_object())
    for (const auto& [name, content] : json["files"].items()) files[name] = string_member(json["files"], name.c_str(), where);
  return std::make_shared<HuggingFaceTokenizer>(files, where);
}

}  // namespace

std::string Tokenizer::decode(std::span<const std::int32_t> ids, std::int32_t previous) const {
  std::string text;
  const std::vector<std::int32_t> beginning = this->beginning();
  const auto is_mark = [&](std::int32_t id) {
    return id == end_of_document() || std::find(beginning.begin(), beginning.end(), id) != beginning.end();
  };
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary_size())
      throw Error(ExitCode::bad_data,
                  "token id " + std::to_string(ids[i]) + " at position " + std::to_string(i) + " is outside the vocabulary of " +
                      std::to_string(vocabulary_size()),
                  "tokenizer " + std::string(kind()), "decode with the tokenizer that the tokens were made with");
    if (!is_mark(ids[i])) {
      std::string_view bytes = token_bytes(ids[i]);
      if (adds_space() && is_mark(previous) && bytes.starts_with(' ')) bytes.remove_prefix(1);
      text += bytes;
    }
    previous = ids[i];
  }
  return text;
}

std::shared_ptr<const Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where) {
  if (text.size() > max_tokenizer_bytes) throw Error(ExitCode::bad_data, "a tokenizer of more than 256 MiB", where, accepted);
  nlohmann::json json = parse_json(text, where, {}, accepted);
  if (json.contains("tokenizer") && json["tokenizer"].is_object()) json = nlohmann::json(json["tokenizer"]);
  if (json.contains("model") && json.contains("added_tokens"))
    return std::make_shared<HuggingFaceTokenizer>(std::map<std::string, std::string>{{"tokenizer.json", std::string(text)}}, where);
  const std::string& kind = string_member(json, "kind", where);
  if (kind == "bytes") return std::make_shared<ByteTokenizer>();
  if (kind == "llama2c") {
    std::optional<std::string> file = decode_base64(string_member(json, "file", where));
    if (!file) throw Error(ExitCode::bad_data, "the text under \"file\" is not base64", where, accepted);
    return std::make_shared<Llama2cTokenizer>(std::move(*file), where);
  }
  if (kind == "sentencepiece") {
    std::optional<std::string> file = decode_base64(string_member(json, "file", where));
    if (!file) throw Error(ExitCode::bad_data, "the text under \"file\" is not base64", where, accepted);
    return std::make_shared<SentencePieceTokenizer>(std::move(*file), where);
  }
  if (kind == "huggingface") return hugging_face_from_json(json, where);
  if (kind != "tiktoken") throw Error(ExitCode::bad_data, "unknown kind of tokenizer \"" + kind + "\"", where, accepted);
  const std::string& pattern = string_member(json, "pattern", where);
  if (pattern != "gpt2") throw Error(ExitCode::bad_data, "unknown pattern \"" + pattern + "\"", where, accepted);
  return std::make_shared<RankTokenizer>(parse_rank_file(string_member(json, "ranks", where), where), where);
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_shared<ByteTokenizer>();
  if (spec.empty()) throw Error(ExitCode::bad_config, "no tokenizer was named", "", accepted);
  std::error_code ignored;
  if (!std::filesystem::exists(spec, ignored)) throw Error(ExitCode::bad_data, "no such tokenizer or file", spec, accepted);
  if (std::filesystem::is_directory(spec, ignored)) {
    if (auto tokenizer = load_folder_tokenizer(spec)) return tokenizer;
    throw Error(ExitCode::bad_data, "no tokenizer in this folder", spec, accepted);
  }
  const std::string content = read_file(spec, max_tokenizer_bytes);
  // Beside a tokenizer.json lies what names its special tokens.
  if (std::filesystem::path(spec).filename() == "tokenizer.json" && content.find("\"added_tokens\"") != std::string::npos)
    if (auto tokenizer = load_folder_tokenizer(std::filesystem::absolute(spec).parent_path())) return tokenizer;
  if (content.starts_with('{')) return tokenizer_from_json(content, spec);
  if (looks_like_llama2c_tokenizer(content)) return std::make_shared<Llama2cTokenizer>(content, spec);
  if (content.empty() || looks_like_rank_file(content)) return std::make_shared<RankTokenizer>(parse_rank_file(content, spec), spec);
  if (looks_like_sentence_piece(content)) return std::make_shared<SentencePieceTokenizer>(content, spec);
  throw Error(ExitCode::bad_data, "not a tokenizer file: it looks like " + describe_content(std::as_bytes(std::span(content))), spec,
              accepted);
}

}  // namespace baleen
