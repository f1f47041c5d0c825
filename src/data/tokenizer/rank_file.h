// A tiktoken rank file: lines of "base64 token, space, decimal rank". The rank is the token's id and the order in which pairs merge.
#pragma once

#include <string>
#include <string_view>

#include "data/tokenizer/token_table.h"

namespace baleen {

inline constexpr std::size_t max_rank_file_bytes = std::size_t{64} << 20;
inline constexpr std::size_t max_token_bytes = 512;  // the longest in published vocabularies has 128

// Whether the first line looks like one of a rank file.
bool looks_like_rank_file(std::string_view content);

// The tokens with id = rank. Lines may stand in any order, end in LF or CR LF, and be empty; each rank 0 … n-1 and each token must be
// there once, with the 256 single bytes among them. Throws Error(bad_data) naming `where`, line and remedy.
TokenTable parse_rank_file(std::string_view content, const std::string& where);

// The file parse_rank_file() reads, in order of rank.
std::string write_rank_file(const TokenTable& tokens);

}  // namespace baleen
