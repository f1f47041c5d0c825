// The tokenizer's files in the folder of a model.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace baleen {

// The tokenizer of a Hugging Face folder; nullptr where it has none of the files that could hold one. Throws Error(bad_data) naming the
// file that cannot be used.
std::shared_ptr<const Tokenizer> load_folder_tokenizer(const std::filesystem::path& folder);

// By name, the files of a folder that belong to its tokenizer, for a copy of the model.
std::map<std::string, std::string> folder_tokenizer_files(const std::filesystem::path& folder);

// The files that give a tokenizer back: those it was loaded from, and tokenizer.baleen.json where it came from nothing that others read.
std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer);

}  // namespace baleen
