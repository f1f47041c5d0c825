#include "data/token_layout.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/foreign_file.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

struct FormatFacts {
  TokenFormat format;
  const char* name;
  std::size_t bytes;
  int megatron_code;  // dtype in an .idx; 0: none
};
constexpr FormatFacts facts[]{{TokenFormat::llmc_uint16, "llm.c uint16 (GPT-2)", 2, 0},
                              {TokenFormat::llmc_uint32, "llm.c uint32 (Llama 3)", 4, 0},
                              {TokenFormat::llmq_int32, "LLMQ int32", 4, 0},
                              {TokenFormat::megatron_uint8, "Megatron uint8", 1, 1},
                              {TokenFormat::megatron_int8, "Megatron int8", 1, 2},
                              {TokenFormat::megatron_uint16, "Megatron uint16", 2, 8},
                              {TokenFormat::megatron_int16, "Megatron int16", 2, 3},
                              {TokenFormat::megatron_int32, "Megatron int32", 4, 4},
                              {TokenFormat::megatron_int64, "Megatron int64", 8, 5}};

struct HeaderNumbers {
  TokenFormat format;
  LlmcHeader header;
};
constexpr HeaderNumbers llmc_formats[]{{TokenFormat::llmc_uint16, {20240520, 1}}, {TokenFormat::llmc_uint32, {20240801, 7}}};

constexpr const char* make_one = "make a token file with `baleen tokenize`";
constexpr const char* truncated = "the file was truncated: copy or make it again";
constexpr std::string_view llmq_magic = "BIN.TOK\n"sv, megatron_magic = "MMIDIDX\0\0"sv;

const FormatFacts& facts_of(TokenFormat format) {
  return facts[static_cast<std::size_t>(format)];
}

template <class T>
T read_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The checks that both formats with a header of 1024 bytes share.
TokenLayout with_header(std::span<const std::byte> file, TokenFormat format, std::int32_t count, const std::string& where) {
  if (count < 0) throw Error(ExitCode::bad_data, "the header promises " + std::to_string(count) + " tokens", where, make_one);
  if (count == 0) throw Error(ExitCode::bad_data, "token file without tokens", where, make_one);
  const auto tokens = static_cast<std::uint64_t>(count);
  const std::uint64_t expected = token_header_bytes + tokens * token_format_bytes(format);
  if (file.size() != expected)
    throw Error(ExitCode::bad_data,
                "the header promises " + std::to_string(tokens) + " tokens, which is a file of " + std::to_string(expected) +
                    " bytes, but the file has " + std::to_string(file.size()),
                where, file.size() < expected ? truncated : "bytes were added after the tokens: copy or make it again");
  return {format, tokens, token_header_bytes};
}

void require_header(std::span<const std::byte> file, const std::string& where, const std::string& kind = "") {
  if (file.size() < token_header_bytes)
    throw Error(ExitCode::bad_data,
                kind + "token file of " + std::to_string(file.size()) + " bytes is shorter than its header of " +
                    std::to_string(token_header_bytes),
                where, truncated);
}

TokenLayout llmq_layout(std::span<const std::byte> file, const std::string& where) {
  require_header(file, where, "LLMQ ");
  const auto word = [&](std::size_t index) { return read_at<std::int32_t>(file, 4 * index); };
  if (word(2) != 2)
    throw Error(ExitCode::bad_data, "LLMQ token file of version " + std::to_string(word(2)) + "; version 2 is read", where, make_one);
  if (word(3) != 4)
    throw Error(ExitCode::bad_data, "LLMQ token file with " + std::to_string(word(3)) + " bytes a token; 4 are read", where, make_one);
  if (word(6) != 0) throw Error(ExitCode::bad_data, "LLMQ token file with masks, which are not supported", where, "make it without masks");
  return with_header(file, TokenFormat::llmq_int32, word(4), where);
}

// Megatron-LM's .idx: magic, u64 version, u8 dtype, u64 sequences, u64 document entries; int32 lengths, int64 offsets, int64 document
// boundaries, optionally int8 modes. Sequences must follow each other in the .bin, as Megatron's own builder writes them.
TokenLayout megatron_layout(std::span<const std::byte> file, const fs::path& index_path) {
  constexpr std::size_t header = 34;
  const std::string where = index_path.string();
  const MappedFile mapped(index_path);
  const std::span<const std::byte> index = mapped.bytes();
  const auto fail = [&](const std::string& problem) -> void {
    throw Error(ExitCode::bad_data, "Megatron index: " + problem, where, "copy or make the .bin and .idx again");
  };
  if (index.size() < header) fail("it is truncated");
  if (const auto version = read_at<std::uint64_t>(index, 9); version != 1)
    fail("version " + std::to_string(version) + "; version 1 is read");
  const int code = read_at<std::uint8_t>(index, 17);
  const auto* known =
      std::find_if(std::begin(facts), std::end(facts), [&](const FormatFacts& f) { return f.megatron_code == code && code != 0; });
  if (known == std::end(facts)) fail("dtype " + std::to_string(code) + " holds no token ids");
  const auto sequences = read_at<std::uint64_t>(index, 18), entries = read_at<std::uint64_t>(index, 26);
  if (sequences > index.size() / 12 || entries > index.size() / 8) fail("it is truncated");
  const std::uint64_t expected = header + 12 * sequences + 8 * entries;
  if (index.size() != expected && index.size() != expected + sequences)
    fail("its counts ask for " + std::to_string(expected) + " bytes and it has " + std::to_string(index.size()));
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const auto length = read_at<std::int32_t>(index, header + 4 * i);
    const auto offset = read_at<std::int64_t>(index, header + 4 * sequences + 8 * i);
    if (length < 0) fail("sequence " + std::to_string(i) + " has the length " + std::to_string(length));
    if (offset < 0 || static_cast<std::uint64_t>(offset) != bytes)
      fail("sequence " + std::to_string(i) + " does not follow the one before it");
    bytes += static_cast<std::uint64_t>(length) * known->bytes;
  }
  if (bytes == 0) fail("it has no tokens");
  if (bytes != file.size())
    fail("it describes " + std::to_string(bytes) + " bytes of tokens and the .bin has " + std::to_string(file.size()));
  return {known->format, bytes / known->bytes, 0};
}

// The .idx beside a .bin, where it is one of Megatron's.
std::optional<fs::path> megatron_index(const fs::path& path) {
  fs::path index = path;
  index.replace_extension(".idx");
  std::error_code ignored;
  if (path.extension() != ".bin" || !fs::exists(index, ignored)) return std::nullopt;
  const MappedFile mapped(index);
  return text_of(mapped.bytes()).starts_with(megatron_magic) ? std::optional(index) : std::nullopt;
}

}  // namespace

std::string_view token_format_name(TokenFormat format) {
  return facts_of(format).name;
}
std::size_t token_format_bytes(TokenFormat format) {
  return facts_of(format).bytes;
}

LlmcHeader llmc_header(TokenFormat format) {
  for (const auto& [candidate, header] : llmc_formats)
    if (candidate == format) return header;
  BALEEN_CHECK(false, "not a format of llm.c", token_format_name(format));
  return {};
}

TokenLayout recognise_token_layout(std::span<const std::byte> file, const fs::path& path) {
  const std::string where = path.string();
  if (text_of(file).starts_with(llmq_magic)) return llmq_layout(file, where);
  std::int32_t words[3] = {};  // magic, version, tokens
  if (file.size() >= sizeof words) std::memcpy(words, file.data(), sizeof words);
  const auto* known =
      std::find_if(std::begin(llmc_formats), std::end(llmc_formats), [&](const HeaderNumbers& f) { return f.header.magic == words[0]; });
  if (file.size() < sizeof words || known == std::end(llmc_formats)) {
    if (const auto index = megatron_index(path)) return megatron_layout(file, *index);
    throw Error(ExitCode::bad_data, "not a token file: it looks like " + describe_content(file), where, make_one);
  }
  require_header(file, where);
  if (words[1] != known->header.version)
    throw Error(ExitCode::bad_data,
                "token file of version " + std::to_string(words[1]) + "; version " + std::to_string(known->header.version) + " is read",
                where, make_one);
  return with_header(file, known->format, words[2], where);
}

}  // namespace baleen
