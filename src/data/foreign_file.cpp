#include "data/foreign_file.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace baleen {
namespace {

using namespace std::string_view_literals;

static_assert(std::endian::native == std::endian::little, "the file formats are little-endian and are read in place");

struct Signature {
  std::string_view prefix;
  const char* name;
};

constexpr Signature signatures[]{
    {"\x1f\x8b\x08"sv, "a gzip archive"},
    {"\x28\xb5\x2f\xfd"sv, "a zstd archive"},
    {"\xfd"
     "7zXZ\0"sv,
     "an xz archive"},
    {"PK\x03\x04"sv, "a zip archive (PyTorch checkpoints are one)"},
    {"PAR1\x15"sv, "a Parquet file"},
    {"ARROW1\0\0"sv, "an Arrow file"},
    {"\x93NUMPY"sv, "a NumPy array"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"},
    {"GGUF\x02\0\0\0"sv, "a GGUF model"},
    {"GGUF\x03\0\0\0"sv, "a GGUF model"},
    {"%PDF-1."sv, "a PDF document"},
    {"\x7f"
     "ELF"sv,
     "a program"},
    {"BIN.TOK\n"sv, "an LLMQ token file"},
    {"MMIDIDX\0\0"sv, "a Megatron index"},
    {"version https://git-lfs"sv, "a Git LFS pointer: the file itself was not downloaded (git lfs pull)"},
};

struct Magic {
  std::int32_t number;
  const char* name;
};
constexpr Magic llmc_magics[]{{20240520, "an llm.c token file (uint16)"},
                              {20240801, "an llm.c token file (uint32)"},
                              {20240522, "an llm.c multiple-choice file"},
                              {20240326, "an llm.c model"}};

}  // namespace

std::string recognise_format(std::span<const std::byte> content) {
  const std::string_view text(reinterpret_cast<const char*>(content.data()), std::min<std::size_t>(content.size(), 1024));
  for (const auto& [prefix, name] : signatures)
    if (text.starts_with(prefix)) return name;
  if (text.starts_with("BZh") && text.substr(std::min<std::size_t>(4, text.size())).starts_with("1AY&SY")) return "a bzip2 archive";
  if (text.size() >= 4) {
    std::int32_t magic = 0;
    std::memcpy(&magic, text.data(), sizeof magic);
    for (const auto& [number, name] : llmc_magics)
      if (magic == number) return name;
  }
  if (text.size() >= 10 && text[8] == '{') {  // a 64-bit length, then JSON
    std::uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof header);
    if (header >= 2 && header <= 100'000'000) return "a safetensors file";
  }
  return "";
}

std::string describe_content(std::span<const std::byte> content) {
  if (content.empty()) return "nothing: it is empty";
  if (std::string known = recognise_format(content); !known.empty()) return known;
  const auto head = content.first(std::min<std::size_t>(content.size(), 1024));
  const auto is_text = [](std::byte byte) {
    const auto c = static_cast<unsigned char>(byte);
    return c >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  };
  if (std::all_of(head.begin(), head.end(), is_text)) return "text";
  return "binary data without a header known here";
}

}  // namespace baleen
