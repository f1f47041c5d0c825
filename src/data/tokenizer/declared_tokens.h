// Tokens that the files beside a tokenizer's own add to it: transformers gives them ids, whether the tokenizer's own file has them or not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace baleen {

struct DeclaredToken {
  std::string content;
  std::int64_t id = 0;
  std::string file;
};

// Of tokenizer_config.json's added_tokens_decoder and of added_tokens.json, as far as `files` (by name) has them. Throws Error(bad_data)
// naming the file where it is malformed.
std::vector<DeclaredToken> declared_tokens(const std::map<std::string, std::string>& files);

// The first few, for a message: "<|user|>" (600, added_tokens.json) …
std::string some_tokens(const std::vector<DeclaredToken>& tokens);

}  // namespace baleen
