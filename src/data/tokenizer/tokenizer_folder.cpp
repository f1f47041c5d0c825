#include "data/tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/declared_tokens.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;

constexpr const char* own_file = "tokenizer.baleen.json";
constexpr const char* main_file = "tokenizer.json";
constexpr const char* model_file = "tokenizer.model";
constexpr std::array<const char*, 10> known_files{
    own_file,     "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json"};
constexpr std::size_t size_limit = std::size_t{256} << 20;

// tokenizer.model of a folder. transformers also takes tokens that the other files add to it, which its library does not know.
std::shared_ptr<const Tokenizer> load_sentence_piece(const fs::path& folder) {
  auto tokenizer = load_tokenizer((folder / model_file).string());
  const std::map<std::string, std::string> files = folder_tokenizer_files(folder);
  std::vector<DeclaredToken> tokens = declared_tokens(files);
  if (const auto found = files.find(main_file); found != files.end())
    for (const DeclaredToken& token : added_tokens_of(found->second)) tokens.push_back(token);
  std::vector<DeclaredToken> beyond;
  for (const DeclaredToken& token : tokens)
    if (token.id >= tokenizer->vocabulary_size() &&
        std::ranges::none_of(beyond, [&](const DeclaredToken& other) { return other.id == token.id; }))
      beyond.push_back(token);
  if (!beyond.empty())
    throw Error(ExitCode::bad_data, "tokens that tokenizer.model does not have: " + some_tokens(beyond), folder.string(),
                "give tokenizer.model itself as the tokenizer (--tokenizer, data.tokenizer) to do without them");
  return tokenizer;
}

}  // namespace

std::shared_ptr<const Tokenizer> load_folder_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  const auto there = [&](const char* name) { return fs::exists(folder / name, ignored); };
  if (there(own_file)) return load_tokenizer((folder / own_file).string());
  // A tokenizer.json that was converted from a SentencePiece model says less well what tokenizer.model says.
  if (there(main_file) && (!there(model_file) || is_byte_level(read_file(folder / main_file, size_limit))))
    return std::make_shared<HuggingFaceTokenizer>(folder_tokenizer_files(folder), (folder / main_file).string());
  if (there(model_file)) return load_sentence_piece(folder);
  if (there("vocab.json") && there("merges.txt"))
    throw Error(ExitCode::bad_data, "tokenizer.json is missing; vocab.json and merges.txt alone do not say how a text is cut",
                folder.string(), "write it with AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers");
  return nullptr;
}

std::map<std::string, std::string> folder_tokenizer_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  std::error_code ignored;
  for (const char* name : known_files)
    if (fs::exists(folder / name, ignored)) files[name] = read_file(folder / name, size_limit);
  return files;
}

std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer) {
  std::map<std::string, std::string> files = tokenizer.files();
  if (files.empty()) files[own_file] = tokenizer.to_json() + "\n";
  return files;
}

}  // namespace baleen
