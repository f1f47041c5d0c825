// Text files to token files: what `baleen tokenize` does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/sidecar.h"
#include "data/tokenizer/tokenizer.h"

namespace baleen {

struct TokenizeOptions {
  double val_fraction = 0;          // of the tokens, in [0, 1): see validation_split.h
  int threads = 0;                  // that encode; 0: one a core. The output does not depend on it
  std::string json_field = "text";  // of JSON lines
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // bytes of the input files, from the calling thread
  std::size_t chunk_bytes = std::size_t{1} << 20;  // of text encoded at a time. The output does not depend on it
};

struct TokenizeResult {
  std::filesystem::path train, sidecar;
  std::optional<std::filesystem::path> validation;  // where val_fraction > 0
  TokenCounts train_counts;
  std::optional<TokenCounts> validation_counts;
};

// Writes output (FILE.bin), FILE.val.bin where val_fraction > 0, and FILE.json. Inputs are encoded in their order: a text file is a
// document, each line of a .jsonl file is one; either may be packed with gzip. Memory stays bounded, whatever the size of the inputs.
// The files appear complete, at the end, or not at all: an error leaves what was there before.
// Throws Error(bad_config) for a name or option that cannot be, Error(bad_data) for an input or a disk that cannot.
TokenizeResult tokenize_files(const std::vector<std::filesystem::path>& inputs, const Tokenizer& tokenizer,
                              const std::filesystem::path& output, const TokenizeOptions& options = {});

}  // namespace baleen
