// Regular expressions as Hugging Face's `tokenizers` reads them (Oniguruma with Ruby's syntax), written for PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace baleen {

// What to do where a tokenizer.json cannot be read as `tokenizers` reads it.
inline constexpr const char* other_tokenizer_files =
    "give the model's tokenizer.model or tiktoken ranks, or tokenize with Hugging Face's library into a token file (docs/formats.md)";

// An expression for PCRE2 (with UTF and UCP, line ends LF) that matches what `expression` does in Oniguruma. Throws Error(bad_data) naming
// `where` and the construct where the two differ and no such expression is known here. What neither reads is left for PCRE2 to refuse.
std::string pcre2_from_oniguruma(std::string_view expression, const std::string& where);

}  // namespace baleen
