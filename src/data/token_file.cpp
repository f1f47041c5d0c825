#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace baleen {
namespace {

std::array<char, token_header_bytes> header_of(TokenFormat format, std::uint64_t tokens) {
  std::array<char, token_header_bytes> header{};
  const auto [magic, version] = llmc_header(format);
  const std::int32_t words[3] = {magic, version, static_cast<std::int32_t>(tokens)};
  std::memcpy(header.data(), words, sizeof words);
  return header;
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path)
    : file_(path), reader_(path), layout_(recognise_token_layout(file_.bytes(), path)) {}

template <class Body>
decltype(auto) TokenFile::with_tokens(std::uint64_t first, Body body) const {
  const std::byte* tokens = file_.bytes().data() + layout_.data_begin + first * token_format_bytes(layout_.format);
  switch (layout_.format) {
    case TokenFormat::megatron_uint8: return body(reinterpret_cast<const std::uint8_t*>(tokens));
    case TokenFormat::megatron_int8: return body(reinterpret_cast<const std::int8_t*>(tokens));
    case TokenFormat::llmc_uint16:
    case TokenFormat::megatron_uint16: return body(reinterpret_cast<const std::uint16_t*>(tokens));
    case TokenFormat::megatron_int16: return body(reinterpret_cast<const std::int16_t*>(tokens));
    case TokenFormat::megatron_int64: return body(reinterpret_cast<const std::int64_t*>(tokens));
    case TokenFormat::llmq_int32:
    case TokenFormat::megatron_int32: return body(reinterpret_cast<const std::int32_t*>(tokens));
    case TokenFormat::llmc_uint32: break;
  }
  return body(reinterpret_cast<const std::uint32_t*>(tokens));
}

namespace {

// An id as an unsigned number that is in no vocabulary where it is negative or too large.
template <class Stored>
std::uint32_t widen(Stored id) {
  if constexpr (sizeof(Stored) == 8) return id < 0 || id > 0xffffffff ? 0xffffffffu : static_cast<std::uint32_t>(id);
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(id));
}

template <class Stored>
void widen_all(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored token;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    out[i] = static_cast<std::int32_t>(widen(token));
  }
}

}  // namespace

void TokenFile::read(std::uint64_t first, std::span<std::int32_t> out, std::int64_t vocabulary) const {
  BALEEN_CHECK(first <= size() && out.size() <= size() - first, "first", first, "count", out.size(), "of", size());
  const std::size_t width = token_format_bytes(layout_.format), offset = layout_.data_begin + first * width;
  if (width == 4) {
    reader_.read_at(offset, out.data(), out.size_bytes());
  } else if (width < 4) {
    // Narrow tokens go to the end of the room for 32-bit ones, and are widened from the front.
    auto* const narrow = reinterpret_cast<std::byte*>(out.data()) + out.size() * (4 - width);
    reader_.read_at(offset, narrow, out.size() * width);
    switch (layout_.format) {
      case TokenFormat::megatron_uint8: widen_all<std::uint8_t>(narrow, out); break;
      case TokenFormat::megatron_int8: widen_all<std::int8_t>(narrow, out); break;
      case TokenFormat::megatron_int16: widen_all<std::int16_t>(narrow, out); break;
      default: widen_all<std::uint16_t>(narrow, out);
    }
  } else {
    std::vector<std::int64_t> wide(out.size());
    reader_.read_at(offset, wide.data(), wide.size() * sizeof(std::int64_t));
    widen_all<std::int64_t>(reinterpret_cast<const std::byte*>(wide.data()), out);
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    if (const auto id = static_cast<std::uint32_t>(out[i]); static_cast<std::int64_t>(id) >= vocabulary)
      with_tokens(first + i, [&](const auto* token) { fail_id(first + i, static_cast<std::int64_t>(*token), vocabulary); });
}

std::uint32_t TokenFile::max_id(std::uint64_t first, std::uint64_t count) const {
  BALEEN_CHECK(first <= size() && count <= size() - first, "first", first, "count", count, "of", size());
  return with_tokens(first, [&](const auto* tokens) {
    std::uint32_t most = 0;
    for (std::uint64_t i = 0; i < count; ++i) most = std::max(most, widen(tokens[i]));
    return most;
  });
}

void TokenFile::check_ids(std::uint64_t first, std::uint64_t count, std::int64_t vocabulary) const {
  if (count == 0 || static_cast<std::int64_t>(max_id(first, count)) < vocabulary) return;
  with_tokens(first, [&](const auto* tokens) {
    for (std::uint64_t i = 0; i < count; ++i)
      if (static_cast<std::int64_t>(widen(tokens[i])) >= vocabulary) fail_id(first + i, static_cast<std::int64_t>(tokens[i]), vocabulary);
  });
}

void TokenFile::fail_id(std::uint64_t index, std::int64_t id, std::int64_t vocabulary) const {
  throw Error(ExitCode::bad_data,
              "token id " + std::to_string(id) + " at token " + std::to_string(index) + " is outside the model's vocabulary of " +
                  std::to_string(vocabulary),
              path().string() + ", token " + std::to_string(index),
              "use the token file's own tokenizer and vocabulary, or tokenize the text again");
}

TokenFileSummary summarise(const TokenFile& file) {
  return {file.format(), file.size(), token_format_bytes(file.format()), file.max_id(0, file.size())};
}

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, TokenFormat format) : path_(path), format_(format), file_(path) {
  const std::array<char, token_header_bytes> blank{};
  file_.write(blank.data(), blank.size());
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
  if (ids.size() > max_file_tokens - tokens_)
    throw Error(ExitCode::bad_data, "more than " + std::to_string(max_file_tokens) + " tokens, the most that a token file can count",
                path_.string(), "tokenize the inputs in several files, such as train-000.bin and train-001.bin, and train on train-*.bin");
  constexpr std::size_t block = 1 << 16;
  std::vector<std::uint16_t> narrow;
  for (std::size_t i = 0; i < ids.size(); i += block) {
    const auto part = ids.subspan(i, std::min(block, ids.size() - i));
    const auto [least, greatest] = std::minmax_element(part.begin(), part.end());
    BALEEN_CHECK(*least >= 0 && (format_ == TokenFormat::llmc_uint32 || *greatest <= 0xffff), "ids", *least, *greatest);
    if (format_ == TokenFormat::llmc_uint32) {
      file_.write(part.data(), part.size_bytes());
    } else {
      narrow.assign(part.begin(), part.end());
      file_.write(narrow.data(), narrow.size() * sizeof(std::uint16_t));
    }
  }
  tokens_ += ids.size();
}

void TokenFileWriter::write_header() {
  const auto header = header_of(format_, tokens_);
  file_.write_at(0, header.data(), header.size());
}

void TokenFileWriter::finish(std::uint64_t tokens) {
  BALEEN_CHECK(tokens <= tokens_, tokens, tokens_);
  std::error_code error;
  if (tokens < tokens_) std::filesystem::resize_file(path_, token_header_bytes + tokens * token_format_bytes(format_), error);
  if (error) throw Error(ExitCode::bad_data, "cannot shorten: " + error.message(), path_.string());
  tokens_ = tokens;
  write_header();
  file_.sync_and_close();
}

}  // namespace baleen
