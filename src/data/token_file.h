// Token files: llm.c's are written and read, LLMQ's and Megatron's are read (token_layout.h). llm.c's have a header of 256 little-endian
// int32 (magic, version, number of tokens, zeros), then the tokens.
//   GPT-2:   magic 20240520, version 1, uint16 tokens      Llama 3: magic 20240801, version 7, uint32 tokens
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/file.h"
#include "data/token_layout.h"

namespace baleen {

inline constexpr std::uint64_t max_file_tokens = 0x7fffffff;  // the header's count is an int32

// uint16 where every id of the vocabulary fits in it.
constexpr TokenFormat token_format_for(std::int64_t vocabulary) {
  return vocabulary <= 65536 ? TokenFormat::llmc_uint16 : TokenFormat::llmc_uint32;
}

// A token file with at least one token. Move-only; reading from many threads at once is fine.
class TokenFile {
 public:
  // Throws Error(bad_data) with path and remedy where the file is missing, too short, foreign (and what it seems to be), of another
  // version, empty, or of another length than its header or index says.
  explicit TokenFile(const std::filesystem::path& path);

  std::uint64_t size() const { return layout_.tokens; }
  TokenFormat format() const { return layout_.format; }
  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const std::byte> file_bytes() const { return file_.bytes(); }

  // out[i] = token first + i. Throws Error(bad_data) with file, token index and id where one is not below `vocabulary`, and where the
  // file has become shorter since it was opened.
  void read(std::uint64_t first, std::span<std::int32_t> out, std::int64_t vocabulary) const;

  // The greatest id among tokens [first, first + count), negative ones as what they are in 32 bits without a sign; 0 where count is 0.
  std::uint32_t max_id(std::uint64_t first, std::uint64_t count) const;
  // Throws as read() does, for tokens [first, first + count), without copying them.
  void check_ids(std::uint64_t first, std::uint64_t count, std::int64_t vocabulary) const;

 private:
  [[noreturn]] void fail_id(std::uint64_t index, std::int64_t id, std::int64_t vocabulary) const;
  // Calls body(pointer to the first token in its own type).
  template <class Body>
  decltype(auto) with_tokens(std::uint64_t first, Body body) const;

  MappedFile file_;    // for checks of the whole file before training
  FileReader reader_;  // for training
  TokenLayout layout_;
};

// What `inspect` shows of a token file.
struct TokenFileSummary {
  TokenFormat format{};
  std::uint64_t tokens = 0;
  std::size_t bytes_per_token = 0;
  std::uint32_t max_id = 0;
};
TokenFileSummary summarise(const TokenFile& file);

// Writes a token file from front to back. The destructor leaves an unfinished file without a valid header.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, TokenFormat format);
  // Ids must fit the format. Throws Error(bad_data) when the file cannot grow, or would hold more than max_file_tokens.
  void append(std::span<const std::int32_t> ids);
  std::uint64_t tokens() const { return tokens_; }
  // Makes what was appended so far a valid token file that can be read, and goes on.
  void write_header();
  // Keeps the first `tokens` tokens (all without an argument), writes the header and syncs the file to the disk.
  void finish() { finish(tokens_); }
  void finish(std::uint64_t tokens);

 private:
  std::filesystem::path path_;
  TokenFormat format_;
  FileWriter file_;
  std::uint64_t tokens_ = 0;
};

}  // namespace baleen
