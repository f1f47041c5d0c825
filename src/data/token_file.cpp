#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/foreign_file.h"

namespace baleen {
namespace {

struct FormatNumbers {
  TokenFormat format;
  std::int32_t magic, version;
};
constexpr FormatNumbers formats[]{{TokenFormat::llmc_uint16, 20240520, 1}, {TokenFormat::llmc_uint32, 20240801, 7}};

constexpr const char* make_one = "make a token file with `baleen tokenize`";

std::array<char, token_header_bytes> header_of(TokenFormat format, std::uint64_t tokens) {
  std::array<char, token_header_bytes> header{};
  for (const auto& [candidate, magic, version] : formats) {
    if (candidate != format) continue;
    const std::int32_t words[3] = {magic, version, static_cast<std::int32_t>(tokens)};
    std::memcpy(header.data(), words, sizeof words);
  }
  return header;
}

}  // namespace

std::string_view token_format_name(TokenFormat format) {
  return format == TokenFormat::llmc_uint16 ? "llm.c uint16 (GPT-2)" : "llm.c uint32 (Llama 3)";
}

TokenFile::TokenFile(const std::filesystem::path& path) : file_(path), reader_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const std::string where = path.string();
  std::int32_t header[3] = {};  // magic, version, tokens
  if (bytes.size() >= sizeof header) std::memcpy(header, bytes.data(), sizeof header);
  const auto* known = std::find_if(std::begin(formats), std::end(formats), [&](const FormatNumbers& f) { return f.magic == header[0]; });
  if (bytes.size() < sizeof header || known == std::end(formats))
    throw Error(ExitCode::bad_data, "not a token file: it looks like " + describe_content(bytes), where, make_one);
  if (bytes.size() < token_header_bytes)
    throw Error(
        ExitCode::bad_data,
        "token file of " + std::to_string(bytes.size()) + " bytes is shorter than its header of " + std::to_string(token_header_bytes),
        where, "the file was truncated: copy or make it again");
  if (header[1] != known->version)
    throw Error(ExitCode::bad_data,
                "token file of version " + std::to_string(header[1]) + "; version " + std::to_string(known->version) + " is read", where,
                make_one);
  if (header[2] < 0) throw Error(ExitCode::bad_data, "the header promises " + std::to_string(header[2]) + " tokens", where, make_one);
  if (header[2] == 0) throw Error(ExitCode::bad_data, "token file without tokens", where, make_one);
  format_ = known->format;
  tokens_ = static_cast<std::uint64_t>(header[2]);
  const std::uint64_t expected = token_header_bytes + tokens_ * token_format_bytes(format_);
  if (bytes.size() != expected)
    throw Error(ExitCode::bad_data,
                "the header promises " + std::to_string(tokens_) + " tokens, which is a file of " + std::to_string(expected) +
                    " bytes, but the file has " + std::to_string(bytes.size()),
                where,
                bytes.size() < expected ? "the file was truncated: copy or make it again"
                                        : "bytes were added after the tokens: copy or make it again");
}

template <class Body>
decltype(auto) TokenFile::with_tokens(std::uint64_t first, Body body) const {
  const std::byte* tokens = file_.bytes().data() + token_header_bytes;
  if (format_ == TokenFormat::llmc_uint16) return body(reinterpret_cast<const std::uint16_t*>(tokens) + first);
  return body(reinterpret_cast<const std::uint32_t*>(tokens) + first);
}

void TokenFile::read(std::uint64_t first, std::span<std::int32_t> out, std::int64_t vocabulary) const {
  BALEEN_CHECK(first <= tokens_ && out.size() <= tokens_ - first, "first", first, "count", out.size(), "of", tokens_);
  const std::size_t offset = token_header_bytes + first * token_format_bytes(format_);
  if (format_ == TokenFormat::llmc_uint32) {
    reader_.read_at(offset, out.data(), out.size_bytes());
  } else {
    // The 16-bit tokens go to the second half of the room for 32-bit ones, and are widened from the front.
    auto* const narrow = reinterpret_cast<std::byte*>(out.data()) + out.size() * sizeof(std::uint16_t);
    reader_.read_at(offset, narrow, out.size() * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t token;
      std::memcpy(&token, narrow + i * sizeof token, sizeof token);
      out[i] = token;
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    if (const auto id = static_cast<std::uint32_t>(out[i]); static_cast<std::int64_t>(id) >= vocabulary) fail_id(first + i, id, vocabulary);
}

std::uint32_t TokenFile::max_id(std::uint64_t first, std::uint64_t count) const {
  BALEEN_CHECK(first <= tokens_ && count <= tokens_ - first, "first", first, "count", count, "of", tokens_);
  return with_tokens(first, [&](const auto* tokens) {
    std::uint32_t most = 0;
    for (std::uint64_t i = 0; i < count; ++i) most = std::max<std::uint32_t>(most, tokens[i]);
    return most;
  });
}

void TokenFile::check_ids(std::uint64_t first, std::uint64_t count, std::int64_t vocabulary) const {
  if (count == 0 || static_cast<std::int64_t>(max_id(first, count)) < vocabulary) return;
  with_tokens(first, [&](const auto* tokens) {
    for (std::uint64_t i = 0; i < count; ++i)
      if (static_cast<std::int64_t>(tokens[i]) >= vocabulary) fail_id(first + i, tokens[i], vocabulary);
  });
}

void TokenFile::fail_id(std::uint64_t index, std::uint32_t id, std::int64_t vocabulary) const {
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
