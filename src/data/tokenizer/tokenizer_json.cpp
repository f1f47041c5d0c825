#include "data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/oniguruma.h"

namespace baleen {
namespace {

using nlohmann::json;

constexpr const char* again = "take tokenizer.json from the model's own folder again";
constexpr std::int32_t most_ids = 1 << 24;

class Parser {
 public:
  explicit Parser(const std::string& where) : where_(where) {}

  TokenizerJson parse(const json& document) {
    read_normalizer(document);
    read_steps(member(document, "pre_tokenizer"));
    read_model(object(document, "model"));
    read_added(document);
    if (const json* processor = present(document, "post_processor")) read_beginning(*processor);
    check();
    return std::move(out_);
  }

 private:
  [[noreturn]] void malformed(const std::string& problem) const {
    throw Error(ExitCode::bad_data, "malformed tokenizer.json: " + problem, where_, again);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw Error(ExitCode::bad_data, "tokenizer.json: " + what + " is not supported", where_,
                "byte-level BPE is read, as GPT-2, Llama 3, Qwen and SmolLM2 have it; of others " + std::string(other_tokenizer_files));
  }
  static const json* present(const json& from, const char* key) {
    const auto found = from.find(key);
    return found == from.end() || found->is_null() ? nullptr : &*found;
  }
  const json& member(const json& from, const char* key) const {
    const json* found = present(from, key);
    if (found == nullptr) malformed(std::string("no ") + key);
    return *found;
  }
  const json& object(const json& from, const char* key) const {
    const json& found = member(from, key);
    if (!found.is_object()) malformed(std::string(key) + " is no object");
    return found;
  }
  std::string text(const json& from, const char* key) const {
    const json& found = member(from, key);
    if (!found.is_string()) malformed(std::string(key) + " is no text");
    return found.get<std::string>();
  }
  bool flag(const json& from, const char* key, bool otherwise) const {
    const json* found = present(from, key);
    if (found == nullptr) return otherwise;
    if (!found->is_boolean()) malformed(std::string(key) + " is neither true nor false");
    return found->get<bool>();
  }
  std::int32_t id(const json& value) const {
    if (!value.is_number_integer() || value < 0 || value >= most_ids) malformed("an id " + printable(dump_json(value)));
    return value.get<std::int32_t>();
  }

  void read_normalizer(const json& document) {
    const json* found = present(document, "normalizer");
    if (found == nullptr) return;
    const auto one = [&](const json& normalizer) {
      const std::string type = text(normalizer, "type");
      if (type != "NFC") unsupported("the normalizer " + printable(type));
      out_.nfc = true;
    };
    if (text(*found, "type") != "Sequence") return one(*found);
    for (const json& part : member(*found, "normalizers")) one(part);
  }

  void read_steps(const json& step) {
    const std::string type = text(step, "type");
    if (type == "Sequence") {
      for (const json& part : member(step, "pretokenizers")) read_steps(part);
      return;
    }
    // What stands behind it would cut the characters that stand for bytes.
    if (byte_level_) unsupported("the pre-tokenizer " + printable(type) + " behind ByteLevel");
    if (type == "Split") {
      const std::string behavior = text(step, "behavior");
      const bool invert = flag(step, "invert", false);
      if (behavior != "Isolated" && behavior != "Removed") unsupported("a Split with the behavior " + printable(behavior));
      const json& pattern = object(step, "pattern");
      if (present(pattern, "Regex") == nullptr) unsupported("a Split at a text");
      // With invert what the expression does not match counts as its matches.
      const auto keeps = behavior == "Isolated" ? PretokenizerStep::Keeps::everything
                         : invert               ? PretokenizerStep::Keeps::matches
                                                : PretokenizerStep::Keeps::others;
      out_.steps.push_back({PretokenizerStep::Kind::expression, text(pattern, "Regex"), false, keeps});
    } else if (type == "Digits") {
      out_.steps.push_back(
          {PretokenizerStep::Kind::digits, "", flag(step, "individual_digits", false), PretokenizerStep::Keeps::everything});
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      if (flag(step, "add_prefix_space", true)) unsupported("add_prefix_space");
      if (flag(step, "use_regex", true))
        out_.steps.push_back({PretokenizerStep::Kind::expression, "", false, PretokenizerStep::Keeps::everything});
    } else {
      unsupported("the pre-tokenizer " + printable(type));
    }
  }

  void read_model(const json& model) {
    if (const json* type = present(model, "type"); type != nullptr && *type != "BPE")
      unsupported("a model of the type " + printable(dump_json(*type)));
    if (flag(model, "byte_fallback", false)) unsupported("byte_fallback");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json* found = present(model, key); found != nullptr && *found != json("")) unsupported(key);
    if (const json* dropout = present(model, "dropout"); dropout != nullptr && *dropout != 0) unsupported("dropout");
    if (const json* unknown = present(model, "unk_token"))
      unknown_ = unknown->is_string() ? unknown->get<std::string>() : dump_json(*unknown);
    out_.ignore_merges = flag(model, "ignore_merges", false);
    const json& vocabulary = object(model, "vocab");
    out_.vocabulary.reserve(vocabulary.size());
    for (const auto& [entry, number] : vocabulary.items()) out_.vocabulary.emplace_back(entry, id(number));
    std::sort(out_.vocabulary.begin(), out_.vocabulary.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const json& merges = member(model, "merges");
    if (!merges.is_array()) malformed("merges is no list");
    out_.merges.reserve(merges.size());
    for (const json& merge : merges) {
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        out_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
        continue;
      }
      if (!merge.is_string()) malformed("a merge " + printable(dump_json(merge)));
      const auto& pair = merge.get_ref<const std::string&>();  // "a b", in versions before 0.20
      const std::size_t space = pair.find(' ');
      if (space == 0 || space == std::string::npos || space + 1 == pair.size() || pair.find(' ', space + 1) != std::string::npos)
        malformed("a merge \"" + printable(pair) + "\"");
      out_.merges.emplace_back(pair.substr(0, space), pair.substr(space + 1));
    }
  }

  void read_added(const json& document) {
    const json* list = present(document, "added_tokens");
    if (list == nullptr) return;
    if (!list->is_array()) malformed("added_tokens is no list");
    for (const json& token : *list) {
      if (!token.is_object()) malformed("an added token that is no object");
      const std::string content = text(token, "content");
      if (content.empty()) malformed("an added token without text");
      if (flag(token, "single_word", false)) unsupported("single_word of the added token " + printable(content));
      out_.added.push_back({id(member(token, "id")), content, flag(token, "special", false), flag(token, "normalized", true),
                            flag(token, "lstrip", false), flag(token, "rstrip", false)});
    }
  }

  // TemplateProcessing's "single": what stands before the text.
  void read_beginning(const json& processor) {
    const std::string type = text(processor, "type");
    if (type == "Sequence")
      for (const json& part : member(processor, "processors")) read_beginning(part);
    if (type == "RobertaProcessing" || type == "BertProcessing") unsupported("the post-processor " + type);
    if (type != "TemplateProcessing") return;  // the others change offsets, not ids
    for (const json& part : member(processor, "single")) {
      const json* token = present(part, "SpecialToken");
      if (token == nullptr) break;
      const std::string name = text(*token, "id");
      for (const json& number : member(object(object(processor, "special_tokens"), name.c_str()), "ids"))
        out_.beginning.push_back(id(number));
    }
  }

  void check() const {
    if (!byte_level_) unsupported("a vocabulary that is not of bytes (no ByteLevel pre-tokenizer)");
    if (out_.vocabulary.empty()) malformed("an empty vocabulary");
    for (std::size_t i = 1; i < out_.vocabulary.size(); ++i)
      if (out_.vocabulary[i - 1].second == out_.vocabulary[i].second)
        malformed("the id " + std::to_string(out_.vocabulary[i].second) + " is there twice, for \"" +
                  printable(out_.vocabulary[i - 1].first) + "\" and \"" + printable(out_.vocabulary[i].first) + "\"");
    if (!unknown_.empty()) check_bytes();
    check_added();
  }

  // Bytes that are no entry become the unknown token in `tokenizers`; here there is no such token.
  void check_bytes() const {
    std::set<std::string_view> entries;
    for (const auto& [entry, number] : out_.vocabulary) entries.insert(entry);
    for (int byte = 0; byte < 256; ++byte) {
      const std::string character = encode_byte_characters(std::string(1, static_cast<char>(byte)));
      if (!entries.contains(character))
        unsupported("the unk_token " + printable(unknown_) + " of a vocabulary without the byte character \"" + character + "\"");
    }
  }

  void check_added() const {
    std::unordered_map<std::string_view, std::int32_t> ids;
    std::unordered_map<std::int32_t, std::string_view> texts;
    const auto quoted = [](std::string_view content) { return "\"" + printable(content) + "\""; };
    for (const AddedToken& token : out_.added) {
      const std::string name = "the added token " + quoted(token.content);
      if (!ids.emplace(token.content, token.id).second) malformed(name + " is there twice");
      if (const auto [other, inserted] = texts.emplace(token.id, token.content); !inserted)
        malformed(name + " has the id " + std::to_string(token.id) + " of the added token " + quoted(other->second));
    }
    for (const auto& [entry, number] : out_.vocabulary) {
      if (const auto found = ids.find(entry); found != ids.end() && found->second != number)
        malformed("the added token " + quoted(entry) + " has the id " + std::to_string(found->second) + ", and " + std::to_string(number) +
                  " in the vocabulary");
      if (const auto found = texts.find(number); found != texts.end() && found->second != entry)
        malformed("the added token " + quoted(found->second) + " has the id " + std::to_string(number) +
                  ", which the vocabulary gives to " + quoted(entry));
    }
  }

  const std::string& where_;
  bool byte_level_ = false;
  std::string unknown_;  // unk_token
  TokenizerJson out_;
};

// Whether ByteLevel is one of the pre-tokenizers.
bool cuts_into_bytes(const json& step) {
  if (!step.is_object()) return false;
  if (step.value("type", json()) == "ByteLevel") return true;
  const auto parts = step.find("pretokenizers");
  return parts != step.end() && parts->is_array() && std::any_of(parts->begin(), parts->end(), cuts_into_bytes);
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  return Parser(where).parse(parse_json(text, where, {}, again));
}

bool is_byte_level(std::string_view text) {
  const json document = parse_json(text, "tokenizer.json", {}, again);
  const auto step = document.find("pre_tokenizer");
  return step != document.end() && cuts_into_bytes(*step);
}

std::vector<DeclaredToken> added_tokens_of(std::string_view text) {
  const json document = parse_json(text, "tokenizer.json", {}, again);
  std::vector<DeclaredToken> tokens;
  const auto added = document.find("added_tokens");
  if (added == document.end() || !added->is_array()) return tokens;
  for (const json& token : *added) {
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string() || !token.contains("id") ||
        !token["id"].is_number_integer())
      throw Error(ExitCode::bad_data, "malformed tokenizer.json: an added token " + printable(dump_json(token)), "tokenizer.json", again);
    tokens.push_back({token["content"].get<std::string>(), token["id"].get<std::int64_t>(), "tokenizer.json"});
  }
  return tokens;
}

}  // namespace baleen
