#include "data/tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <array>

#include "base/file.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;

constexpr const char* own_file = "tokenizer.baleen.json";
constexpr std::array<const char*, 10> known_files{own_file,      "tokenizer.json",          "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                                  "vocab.json",  "merges.txt",              "tokenizer.model",       "chat_template.jinja",     "chat_template.json"};
constexpr std::size_t size_limit = std::size_t{256} << 20;

}  // namespace

std::shared_ptr<const Tokenizer> load_folder_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / own_file, ignored)) return load_tokenizer((folder / own_file).string());
  return nullptr;
}

std::map<std::string, std::string> folder_tokenizer_files(const fs::path& folder) {
  std::map<std::string, std::string> files;
  std::error_code ignored;
  for (const char* name : known_files)
    if (fs::exists(folder / name, ignored)) files[name] = read_file(folder / name, size_limit);
  return files;
}

std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer) { return {{own_file, tokenizer.to_json() + "\n"}}; }

}  // namespace baleen
