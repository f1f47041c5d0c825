#include "data/tokenizer/rank_file.h"

#include <charconv>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/base64.h"

namespace baleen {
namespace {

struct RankLine {
  std::string token;
  std::size_t line = 0;  // 1-based; 0: no line gave this rank
};

constexpr const char* remedy = "each line is a base64 token, one space and its rank; take the file again from where it is published";

[[noreturn]] void fail(const std::string& what, const std::string& where, std::size_t line = 0) {
  throw Error(ExitCode::bad_data, "not a usable tiktoken rank file: " + what, where + (line > 0 ? ", line " + std::to_string(line) : ""),
              remedy);
}

// A line's text for a message: its printable beginning.
std::string quoted(std::string_view line) {
  std::string text = "\"";
  for (const char c : line.substr(0, 40)) text += c >= 0x20 && c < 0x7f ? c : '?';
  return text + (line.size() > 40 ? "…\"" : "\"");
}

// Calls body(line number, line without its end) for each line that is not empty.
template <class Body>
void for_each_line(std::string_view content, Body body) {
  std::size_t number = 0;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++number;
    if (!line.empty()) body(number, line);
  }
}

std::optional<std::uint32_t> parse_rank(std::string_view digits) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

void read_line(std::string_view line, std::size_t number, std::vector<RankLine>& ranks, const std::string& where) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) fail("there is no space in " + quoted(line), where, number);
  const auto token = decode_base64(line.substr(0, space));
  if (!token || token->empty()) fail(quoted(line.substr(0, space)) + " is not a base64 token", where, number);
  if (token->size() > max_token_bytes)
    fail("a token of " + std::to_string(token->size()) + " bytes; at most " + std::to_string(max_token_bytes) + " are allowed", where,
         number);
  const auto rank = parse_rank(line.substr(space + 1));
  if (!rank) fail(quoted(line.substr(space + 1)) + " is not a rank", where, number);
  if (*rank >= ranks.size())
    fail("rank " + std::to_string(*rank) + " in a file of " + std::to_string(ranks.size()) +
             " tokens: ranks must be 0, 1, 2, … without holes",
         where, number);
  RankLine& entry = ranks[*rank];
  if (entry.line > 0)
    fail("rank " + std::to_string(*rank) + " was given on line " + std::to_string(entry.line) + " already", where, number);
  entry = {*token, number};
}

}  // namespace

bool looks_like_rank_file(std::string_view content) {
  const std::string_view line = content.substr(0, std::min(content.find('\n'), std::size_t{1024}));
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return false;
  std::string_view rank = line.substr(space + 1);
  if (!rank.empty() && rank.back() == '\r') rank.remove_suffix(1);
  return decode_base64(line.substr(0, space)).has_value() && parse_rank(rank).has_value();
}

TokenTable parse_rank_file(std::string_view content, const std::string& where) {
  if (content.size() > max_rank_file_bytes)
    fail("it has " + std::to_string(content.size()) + " bytes; at most " + std::to_string(max_rank_file_bytes) + " are allowed", where);
  std::size_t lines = 0;
  for_each_line(content, [&](std::size_t, std::string_view) { ++lines; });
  if (lines == 0) fail("it is empty", where);
  std::vector<RankLine> ranks(lines);  // as many ranks as lines, none twice: hence none missing
  for_each_line(content, [&](std::size_t number, std::string_view line) { read_line(line, number, ranks, where); });

  TokenTable tokens;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::int32_t id = tokens.add(ranks[rank].token);
    if (static_cast<std::size_t>(id) != rank)
      fail("the token " + encode_base64(ranks[rank].token) + " stands on line " + std::to_string(ranks[static_cast<std::size_t>(id)].line) +
               " too",
           where, ranks[rank].line);
  }
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    if (tokens.find({&byte, 1}) < 0)
      fail("no token for the single byte " + std::to_string(value) + ", so not every text can be encoded", where);
  }
  return tokens;
}

std::string write_rank_file(const TokenTable& tokens) {
  std::string text;
  for (std::int32_t id = 0; id < tokens.size(); ++id) {
    text += encode_base64(tokens.bytes(id));
    text += ' ';
    text += std::to_string(id);
    text += '\n';
  }
  return text;
}

}  // namespace baleen
