// Hugging Face's tokenizer.json (https://github.com/huggingface/tokenizers), as far as it describes byte-level byte-pair encoding: what
// GPT-2, Llama 3, Qwen 2 to 3 and SmolLM2 have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/declared_tokens.h"

namespace baleen {

// One step of cutting a text into the pieces inside which pairs merge.
struct PretokenizerStep {
  enum class Kind { expression, digits };
  Kind kind = Kind::expression;
  std::string expression;  // "": GPT-2's
  bool individual_digits = false;
  enum class Keeps { everything, matches, others };  // of the pieces; the rest of the text is thrown away
  Keeps keeps = Keeps::everything;
};

struct TokenizerJson {
  std::vector<std::pair<std::string, std::int32_t>> vocabulary;  // entries in the byte alphabet, by ascending id
  std::vector<std::pair<std::string, std::string>> merges;       // by rank
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<PretokenizerStep> steps;
  std::vector<AddedToken> added;
  std::vector<std::int32_t> beginning;  // what the post-processor puts before a text
};

// Throws Error(bad_data) naming `where`, the key and what is wrong with it, or which kind of tokenizer is not supported.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);
// Whether a JSON object is a tokenizer.json of byte-level byte-pair encoding, and not of another kind that its folder may describe again
// in another file.
bool is_byte_level(std::string_view text);
// The added tokens of a tokenizer.json of any kind.
std::vector<DeclaredToken> added_tokens_of(std::string_view text);

}  // namespace baleen
