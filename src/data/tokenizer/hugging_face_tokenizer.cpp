#include "data/tokenizer/hugging_face_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/declared_tokens.h"

namespace baleen {
namespace {

constexpr const char* main_file = "tokenizer.json";

const std::string& main_text(const std::map<std::string, std::string>& files, const std::string& where) {
  const auto found = files.find(main_file);
  if (found == files.end()) throw Error(ExitCode::bad_data, "no tokenizer.json", where, "give a file or folder that has one");
  return found->second;
}

std::vector<AddedToken> added_tokens(const TokenizerJson& described, bool normalized, const NfcNormalizer* nfc = nullptr) {
  std::vector<AddedToken> chosen;
  std::string memory;
  for (const AddedToken& token : described.added) {
    if (token.normalized != normalized) continue;
    chosen.push_back(token);
    if (nfc != nullptr) chosen.back().content = nfc->normalize(token.content, memory);
  }
  return chosen;
}

// The text of a special token in tokenizer_config.json, which is a text or an object with "content".
std::string special_text(const std::map<std::string, std::string>& files, const char* key) {
  const auto found = files.find("tokenizer_config.json");
  if (found == files.end()) return "";
  const auto config = parse_json(found->second, found->first);
  const auto token = config.find(key);
  if (token == config.end()) return "";
  if (token->is_string()) return token->get<std::string>();
  return token->is_object() && token->contains("content") && (*token)["content"].is_string() ? (*token)["content"].get<std::string>() : "";
}

// The pre-tokenizer Digits asks Rust's char::is_numeric, which is Nd, Nl and No.
constexpr const char* digit_runs = R"(\p{N}+)";
constexpr const char* single_digits = R"(\p{N})";

}  // namespace

struct HuggingFaceTokenizer::Scratch {
  BytePairEncoder::Scratch pairs;
  struct Cut {
    std::vector<std::size_t> ends;
    std::vector<bool> matched;
  };
  std::vector<Cut> cuts;  // by step: of the piece that it is at
  std::vector<AddedTokens::Part> parts;
  std::string normalized;
};

BytePairEncoder HuggingFaceTokenizer::make_encoder(const TokenizerJson& described, std::vector<std::int32_t>& ids,
                                                   const std::string& where) {
  TokenTable table;
  for (const auto& [entry, id] : described.vocabulary) {
    const std::optional<std::string> bytes = decode_byte_characters(entry);
    if (!bytes || bytes->empty()) continue;  // a special token's text: never made by merging
    if (table.add(*bytes) == static_cast<std::int32_t>(ids.size())) ids.push_back(id);
  }
  const auto find = [&](const std::string& entry, const std::string& other) {
    const std::optional<std::string> bytes = decode_byte_characters(entry);
    const std::int32_t index = bytes ? table.find(*bytes) : -1;
    if (index < 0)
      throw Error(ExitCode::bad_data,
                  "malformed tokenizer.json: the merge of \"" + printable(entry) + "\" and \"" + printable(other) +
                      "\" is of no entry of the vocabulary",
                  where, "take tokenizer.json from the model's own folder again");
    return index;
  };
  std::vector<BytePairEncoder::Merge> merges;
  merges.reserve(described.merges.size());
  for (const auto& [left, right] : described.merges) merges.push_back({find(left, right), find(right, left), find(left + right, right)});
  return BytePairEncoder(std::move(table), merges, described.ignore_merges);
}

HuggingFaceTokenizer::HuggingFaceTokenizer(const std::map<std::string, std::string>& files, const std::string& where)
    : HuggingFaceTokenizer(parse_tokenizer_json(main_text(files, where), where), files, where) {}

HuggingFaceTokenizer::HuggingFaceTokenizer(TokenizerJson described, std::map<std::string, std::string> files, const std::string& where)
    : files_(std::move(files)),
      encoder_(make_encoder(described, ids_, where)),
      nfc_(described.nfc ? std::make_shared<NfcNormalizer>() : nullptr),
      raw_(added_tokens(described, false)),
      normalized_(added_tokens(described, true, nfc_.get())),
      beginning_(described.beginning) {
  std::int32_t greatest = described.vocabulary.back().second;
  for (const AddedToken& token : described.added) greatest = std::max(greatest, token.id);
  for (const std::int32_t id : beginning_) greatest = std::max(greatest, id);
  bytes_.resize(static_cast<std::size_t>(greatest) + 1);
  for (const auto& [entry, id] : described.vocabulary) bytes_[static_cast<std::size_t>(id)] = decode_byte_characters(entry).value_or(entry);
  for (const AddedToken& token : described.added) bytes_[static_cast<std::size_t>(token.id)] = token.content;
  for (const PretokenizerStep& step : described.steps) {
    if (step.kind == PretokenizerStep::Kind::digits)
      steps_.push_back({Pretokenizer::compile(step.individual_digits ? single_digits : digit_runs, where), true, step.keeps});
    else
      steps_.push_back({step.expression.empty() ? Pretokenizer::gpt2() : Pretokenizer::compile(step.expression, where), false, step.keeps});
  }
  check_declared(described, where);
  choose_end_of_document(described, where);
}

// transformers adds them to what tokenizer.json has, and then their text has ids of its own.
void HuggingFaceTokenizer::check_declared(const TokenizerJson& described, const std::string& where) const {
  std::vector<DeclaredToken> missing;
  for (const DeclaredToken& token : declared_tokens(files_)) {
    const auto entry = std::ranges::lower_bound(described.vocabulary, token.id, {}, [](const auto& other) { return other.second; });
    if (entry != described.vocabulary.end() && entry->second == token.id && entry->first == token.content) continue;
    if (std::ranges::none_of(described.added,
                             [&](const AddedToken& other) { return other.content == token.content && other.id == token.id; }))
      missing.push_back(token);
  }
  if (!missing.empty())
    throw Error(ExitCode::bad_data, "tokens that tokenizer.json does not have under these ids: " + some_tokens(missing), where,
                "write the folder's tokenizer.json anew with AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers, or "
                "give a copy of tokenizer.json without the other files");
}

void HuggingFaceTokenizer::choose_end_of_document(const TokenizerJson& described, const std::string& where) {
  const auto find = [&](const std::string& content) {
    for (const AddedToken& token : described.added)
      if (token.content == content) return token.id;
    return -1;
  };
  for (const char* usual : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (end_of_document_ < 0) end_of_document_ = find(usual);
  if (end_of_document_ < 0) end_of_document_ = find(special_text(files_, "eos_token"));
  if (end_of_document_ < 0)
    throw Error(ExitCode::bad_data,
                "no token ends a document: neither <|endoftext|>, <|end_of_text|> nor </s> was added, and no eos_token is named", where,
                "put tokenizer_config.json with its eos_token beside tokenizer.json");
}

void HuggingFaceTokenizer::encode_piece(std::string_view piece, std::size_t step, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (step == steps_.size()) return encoder_.encode(piece, scratch.pairs, ids);
  using Keeps = PretokenizerStep::Keeps;
  const Keeps keeps = steps_[step].keeps;
  Scratch::Cut& cut = scratch.cuts[step];
  cut.ends.clear();
  cut.matched.clear();
  steps_[step].expression->split(piece, cut.ends, keeps == Keeps::everything ? nullptr : &cut.matched);
  std::size_t begin = 0;
  for (std::size_t i = 0; i < cut.ends.size(); ++i) {
    const std::size_t end = cut.ends[i];
    if (keeps == Keeps::everything || cut.matched[i] == (keeps == Keeps::matches))
      encode_piece(piece.substr(begin, end - begin), step + 1, scratch, ids);
    begin = end;
  }
}

void HuggingFaceTokenizer::encode_plain(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  scratch.cuts.resize(steps_.size());
  encode_piece(text, 0, scratch, ids);
  for (std::size_t i = before; i < ids.size(); ++i) ids[i] = ids_[static_cast<std::size_t>(ids[i])];
}

void HuggingFaceTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  Scratch scratch;
  std::vector<AddedTokens::Part> parts;
  raw_.split(text, parts);
  for (const AddedTokens::Part& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    std::string_view plain = text.substr(part.begin, part.end - part.begin);
    if (nfc_ != nullptr) plain = nfc_->normalize(plain, scratch.normalized);
    scratch.parts.clear();
    normalized_.split(plain, scratch.parts);
    for (const AddedTokens::Part& inner : scratch.parts) {
      if (inner.id >= 0)
        ids.push_back(inner.id);
      else
        encode_plain(plain.substr(inner.begin, inner.end - inner.begin), scratch, ids);
    }
  }
}

std::string HuggingFaceTokenizer::to_json() const {
  return dump_json(nlohmann::json{{"kind", kind()}, {"files", files_}});
}

// Tokens that are found in the normalised text are looked for in the end of it, normalised.
bool HuggingFaceTokenizer::may_divide_token(std::string_view text, std::size_t at) const {
  if (raw_.may_divide(text, at)) return true;
  if (nfc_ == nullptr) return normalized_.may_divide(text, at);
  constexpr std::size_t most_growth = 12;  // bytes that compose to one
  const std::size_t window = std::min(at, most_growth * normalized_.longest());
  std::string memory;
  const std::string_view end = nfc_->normalize(text.substr(at - window, window + 1), memory);
  return normalized_.may_divide(end, end.size() - 1);
}

std::size_t HuggingFaceTokenizer::safe_cut(std::string_view text) const {
  // Digits are pieces of their own whatever stands beside them; the one expression decides.
  auto cuts = Pretokenizer::Cuts::nowhere;
  int expressions = 0;
  for (const Step& step : steps_)
    if (!step.digits) cuts = step.expression->cuts(), ++expressions;
  if (expressions != 1) return 0;
  std::size_t cut = Pretokenizer::safe_cut(text, cuts, text.size());
  while (cut > 0 && may_divide_token(text, cut)) cut = Pretokenizer::safe_cut(text, cuts, cut);
  return cut;
}

}  // namespace baleen
