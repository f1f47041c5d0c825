// The JSON file beside token files: FILE.json for FILE.bin and FILE.val.bin. It carries the tokenizer itself, so that a run can generate
// text after the file it was loaded from is gone, and the counts behind bits per byte.
//   {"format": "baleen-tokens", "version": 1, "tokenizer": {…}, "vocabulary": V, "end_of_document": id,
//    "train": {"bytes": …, "documents": …, "tokens": …}, "validation": the same or null}
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/token_file.h"
#include "data/tokenizer/tokenizer.h"

namespace baleen {

struct TokenCounts {
  std::uint64_t bytes = 0;      // of text, before tokenizing
  std::uint64_t documents = 0;  // of which at least a part is here
  std::uint64_t tokens = 0;     // ends of documents included
  bool operator==(const TokenCounts&) const = default;
};

struct Sidecar {
  std::string tokenizer;  // Tokenizer::to_json()
  std::int64_t vocabulary = 0, end_of_document = 0;
  TokenCounts train;
  std::optional<TokenCounts> validation;

  std::string to_json() const;
  // Throws Error(bad_data) naming `where`.
  static Sidecar from_json(const std::string& json, const std::string& where);
};

// FILE.val.bin and FILE.json for FILE.bin. Throw Error(bad_config) where the name does not end in .bin, or already in .val.bin.
std::filesystem::path validation_path_for(const std::filesystem::path& train);
std::filesystem::path sidecar_path_for(const std::filesystem::path& train);

// What the sidecars of several token files say together.
struct TokenFilesDescription {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<TokenCounts> counts;  // summed; nothing where a file has no sidecar
};

// Nothing where no file has a sidecar. Throws Error(bad_data) where a sidecar is malformed or not of this file (another number of tokens),
// or two of them carry different tokenizers.
std::optional<TokenFilesDescription> describe_token_files(std::span<const TokenFile> files);

}  // namespace baleen
