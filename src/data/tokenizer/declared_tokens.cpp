#include "data/tokenizer/declared_tokens.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace baleen {
namespace {

[[noreturn]] void malformed(const std::string& file, const std::string& problem) {
  throw Error(ExitCode::bad_data, "malformed " + file + ": " + problem, file, "take " + file + " from the model's own folder again");
}

}  // namespace

std::vector<DeclaredToken> declared_tokens(const std::map<std::string, std::string>& files) {
  std::vector<DeclaredToken> tokens;
  if (const auto found = files.find("tokenizer_config.json"); found != files.end()) {
    const auto& [file, text] = *found;
    const auto config = parse_json(text, file);
    const auto decoder = config.find("added_tokens_decoder");
    if (decoder != config.end() && decoder->is_object())
      for (const auto& [key, token] : decoder->items()) {
        std::int64_t id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size()) malformed(file, "added_tokens_decoder: the id " + printable(key));
        if (!token.is_object() || !token.contains("content") || !token["content"].is_string())
          malformed(file, "added_tokens_decoder: no content of " + printable(key));
        tokens.push_back({token["content"].get<std::string>(), id, file});
      }
  }
  if (const auto found = files.find("added_tokens.json"); found != files.end()) {
    const auto& [file, text] = *found;
    const auto ids = parse_json(text, file);
    for (const auto& [content, id] : ids.items()) {
      if (!id.is_number_integer()) malformed(file, "the id of \"" + printable(content) + "\"");
      tokens.push_back({content, id.get<std::int64_t>(), file});
    }
  }
  return tokens;
}

std::string some_tokens(const std::vector<DeclaredToken>& tokens) {
  std::vector<std::string> texts;
  for (const DeclaredToken& token : tokens)
    texts.push_back("\"" + printable(token.content) + "\" (" + std::to_string(token.id) + ", " + token.file + ")");
  return some_of(texts, 3);
}

}  // namespace baleen
