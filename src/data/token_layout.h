// How the tokens of a file are stored: what the header says, or what lies beside a file without one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace baleen {

enum class TokenFormat : std::uint8_t {
  llmc_uint16,
  llmc_uint32,
  llmq_int32,
  megatron_uint8,
  megatron_int8,
  megatron_uint16,
  megatron_int16,
  megatron_int32,
  megatron_int64
};
std::string_view token_format_name(TokenFormat format);
std::size_t token_format_bytes(TokenFormat format);

struct TokenLayout {
  TokenFormat format{};
  std::uint64_t tokens = 0;    // at least one
  std::size_t data_begin = 0;  // bytes from the start of the file
};

// Recognises llm.c's formats and LLMQ's (BIN.TOK) by their headers, and the .bin of Megatron-LM by the .idx beside it; docs/formats.md has
// them. Throws Error(bad_data) with path and remedy for everything else, and for a file whose length is not what is described.
TokenLayout recognise_token_layout(std::span<const std::byte> file, const std::filesystem::path& path);

// llm.c's header of 1024 bytes for a file of these formats.
inline constexpr std::size_t token_header_bytes = 1024;
struct LlmcHeader {
  std::int32_t magic, version;
};
LlmcHeader llmc_header(TokenFormat format);

}  // namespace baleen
