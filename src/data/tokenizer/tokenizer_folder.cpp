#include "data/tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <array>

#include "base/file.h"
#include "data/tokenizer/hugging_face_tokenizer.h"

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

}  // namespace

std::shared_ptr<const Tokenizer> load_folder_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  const auto there = [&](const char* name) { return fs::exists(folder / name, ignored); };
  if (there(own_file)) return load_tokenizer((folder / own_file).string());
  // A tokenizer.json that was converted from a SentencePiece model says less well what tokenizer.model says.
  if (there(main_file) && (!there(model_file) || is_byte_level(read_file(folder / main_file, size_limit))))
    return std::make_shared<HuggingFaceTokenizer>(folder_tokenizer_files(folder), (folder / main_file).string());
  if (there(model_file)) return load_tokenizer((folder / model_file).string());
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
