#include "data/token_file.h"

#include <cstring>
#include <numeric>

#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

std::string words(std::initializer_list<std::int32_t> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * 4};
}

// A token file byte by byte: header words, padding, tokens.
std::string token_file_bytes(std::initializer_list<std::int32_t> header, const std::string& tokens) {
  std::string bytes = words(header);
  bytes.resize(token_header_bytes, '\0');
  return bytes + tokens;
}

std::vector<std::int32_t> all_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(file.size());
  file.read(0, ids, std::int64_t{1} << 40);
  return ids;
}

void write_tokens(const std::filesystem::path& path, TokenFormat format, const std::vector<std::int32_t>& ids) {
  TokenFileWriter writer(path, format);
  writer.append(ids);
  writer.finish();
}

TEST(TokenFormat, FollowsTheVocabulary) {
  EXPECT_EQ(token_format_for(257), TokenFormat::llmc_uint16);
  EXPECT_EQ(token_format_for(65536), TokenFormat::llmc_uint16);
  EXPECT_EQ(token_format_for(65537), TokenFormat::llmc_uint32);
}

TEST(TokenFile, SaysWhenItHasBecomeShorter) {
  const TemporaryFolder folder;
  for (const TokenFormat format : {TokenFormat::llmc_uint16, TokenFormat::llmc_uint32}) {
    std::vector<std::int32_t> ids(5000);
    std::iota(ids.begin(), ids.end(), 0);
    write_tokens(folder / "ids.bin", format, ids);
    const TokenFile file(folder / "ids.bin");
    std::filesystem::resize_file(folder / "ids.bin", token_header_bytes + 100);
    std::vector<std::int32_t> out(20);
    file.read(5, out, 5000);
    EXPECT_EQ(out, std::vector<std::int32_t>(ids.begin() + 5, ids.begin() + 25));
    EXPECT_ERROR(file.read(4980, out, 5000), ExitCode::bad_data, "ids.bin", "become shorter");
  }
}

// The layout of docs/formats.md, written out here.
TEST(TokenFile, ReadsWhatLlmcWrites) {
  const TemporaryFolder folder;
  const TokenFile narrow(folder.write("gpt2.bin", token_file_bytes({20240520, 1, 3}, std::string("\x01\x00\xff\xff\x00\x01", 6))));
  EXPECT_EQ(narrow.format(), TokenFormat::llmc_uint16);
  EXPECT_EQ(all_of(narrow), (std::vector<std::int32_t>{1, 65535, 256}));
  const TokenFile wide(folder.write("llama.bin", token_file_bytes({20240801, 7, 2}, words({128001, 5}))));
  EXPECT_EQ(wide.format(), TokenFormat::llmc_uint32);
  EXPECT_EQ(all_of(wide), (std::vector<std::int32_t>{128001, 5}));
}

TEST(TokenFile, IsWrittenAsLlmcReadsIt) {
  const TemporaryFolder folder;
  write_tokens(folder / "gpt2.bin", TokenFormat::llmc_uint16, {1, 65535, 256});
  EXPECT_EQ(read_file(folder / "gpt2.bin"), token_file_bytes({20240520, 1, 3}, std::string("\x01\x00\xff\xff\x00\x01", 6)));
  write_tokens(folder / "llama.bin", TokenFormat::llmc_uint32, {128001, 5});
  EXPECT_EQ(read_file(folder / "llama.bin"), token_file_bytes({20240801, 7, 2}, words({128001, 5})));
}

TEST(TokenFileWriter, WritesLongRunsInPartsAndCanBeShortened) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> ids(200'000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * 7919 % 50257);
  for (const TokenFormat format : {TokenFormat::llmc_uint16, TokenFormat::llmc_uint32}) {
    TokenFileWriter writer(folder / "long.bin", format);
    writer.append({ids.data(), 123});
    writer.append({ids.data() + 123, ids.size() - 123});
    writer.write_header();
    EXPECT_EQ(all_of(TokenFile(folder / "long.bin")), ids);
    writer.append(std::vector<std::int32_t>{1, 2, 3});
    writer.finish(150'000);
    EXPECT_EQ(all_of(TokenFile(folder / "long.bin")), std::vector<std::int32_t>(ids.begin(), ids.begin() + 150'000));
  }
}

TEST(TokenFileWriter, LeavesNoValidFileWhenAbandoned) {
  const TemporaryFolder folder;
  {
    TokenFileWriter(folder / "left.bin", TokenFormat::llmc_uint16).append(std::vector<std::int32_t>{1, 2, 3});
  }
  EXPECT_ERROR(TokenFile(folder / "left.bin"), ExitCode::bad_data, "left.bin", "not a token file");
}

TEST(TokenFileWriter, NamesThePathOfAFullDisk) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("/dev/full", folder / "full.bin");
  EXPECT_ERROR(TokenFileWriter(folder / "full.bin", TokenFormat::llmc_uint16), ExitCode::bad_data, "full.bin", "No space left");
  EXPECT_ERROR(TokenFileWriter(folder / "no/such.bin", TokenFormat::llmc_uint16), ExitCode::bad_data, "no/such.bin");
}

struct Foreign {
  const char* name;
  std::string content;
  std::vector<std::string> message;
};

TEST(TokenFile, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const std::string safetensors = std::string("\x08\0\0\0\0\0\0\0", 8) + "{}      ";
  const std::string good = token_file_bytes({20240520, 1, 3}, std::string(6, '\1'));
  const std::vector<Foreign> files{
      {"empty file", "", {"empty"}},
      {"two bytes", "ab", {"looks like text"}},
      {"text", "In the beginning God created the heaven and the earth.\n", {"looks like text", "baleen tokenize"}},
      {"gzip", std::string("\x1f\x8b\x08\0", 4) + std::string(2000, 'x'), {"gzip"}},
      {"safetensors", safetensors, {"safetensors"}},
      {"LLMQ", "BIN.TOK\n" + words({2, 4, 10, 100}), {"LLMQ"}},
      {"Megatron index", std::string("MMIDIDX\0\0", 9) + words({1, 0}), {"Megatron"}},
      {"LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n", {"Git LFS pointer"}},
      {"NumPy", "\x93NUMPY" + words({1, 2}), {"NumPy"}},
      {"Parquet", "PAR1\x15\x04" + words({1, 2}), {"Parquet"}},
      {"raw tokens", words({318, 257, 1332, 11}), {"binary data"}},
      {"llm.c multiple choice", token_file_bytes({20240522, 1, 3}, ""), {"multiple-choice"}},
      {"llm.c model", token_file_bytes({20240326, 3, 1024}, ""), {"llm.c model"}},
      {"short header", good.substr(0, 500), {"500 bytes", "1024", "truncated"}},
      {"header of another version", token_file_bytes({20240520, 2, 3}, std::string(6, '\1')), {"version 2", "version 1"}},
      {"Llama magic with GPT-2's version", token_file_bytes({20240801, 1, 3}, std::string(12, '\1')), {"version 1", "version 7"}},
      {"no tokens", token_file_bytes({20240520, 1, 0}, ""), {"without tokens"}},
      {"negative count", token_file_bytes({20240520, 1, -5}, ""), {"-5 tokens"}},
      {"truncated", good.substr(0, good.size() - 1), {"3 tokens", "1030 bytes", "has 1029", "truncated"}},
      {"trailing", good + "x", {"1030 bytes", "has 1031", "added"}},
      {"GPT-2 header over uint32 tokens", token_file_bytes({20240520, 1, 3}, std::string(12, '\1')), {"1030 bytes", "has 1036"}},
  };
  for (const Foreign& file : files) {
    SCOPED_TRACE(file.name);
    const auto path = folder.write("some.bin", file.content);
    const Error error = test::error_of([&] { TokenFile{path}; });
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_EQ(error.where(), path.string());
    EXPECT_FALSE(error.remedy().empty());
    for (const auto& part : file.message)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no " << part << " in\n" << error.what();
  }
  EXPECT_ERROR(TokenFile(folder / "missing.bin"), ExitCode::bad_data, "missing.bin");
  EXPECT_ERROR(TokenFile(folder.path()), ExitCode::bad_data, "directory");
}

TEST(TokenFile, NamesThePositionOfAnIdOutsideTheVocabulary) {
  const TemporaryFolder folder;
  std::vector<std::int32_t> ids(1000);
  std::iota(ids.begin(), ids.end(), 0);
  ids[700] = 5000;
  ids[800] = 6000;
  for (const TokenFormat format : {TokenFormat::llmc_uint16, TokenFormat::llmc_uint32}) {
    write_tokens(folder / "ids.bin", format, ids);
    const TokenFile file(folder / "ids.bin");
    std::vector<std::int32_t> out(500);
    file.read(0, out, 500);
    EXPECT_EQ(out[499], 499);
    file.check_ids(0, 1000, 6001);
    file.check_ids(701, 99, 1000);
    file.check_ids(999, 0, 1);
    EXPECT_ERROR(file.check_ids(0, 1000, 1000), ExitCode::bad_data, "5000", "ids.bin, token 700", "1000");
    EXPECT_ERROR(file.check_ids(701, 299, 6000), ExitCode::bad_data, "6000", "ids.bin, token 800");
    EXPECT_ERROR(file.read(500, out, 1000), ExitCode::bad_data, "5000", "ids.bin, token 700");
    EXPECT_ERROR(file.read(0, out, 499), ExitCode::bad_data, "id 499", "token 499");
    const TokenFileSummary summary = summarise(file);
    EXPECT_EQ(summary.max_id, 6000u);
    EXPECT_EQ(summary.tokens, 1000u);
    EXPECT_EQ(summary.bytes_per_token, format == TokenFormat::llmc_uint16 ? 2u : 4u);
  }
}

TEST(TokenFile, CountsIdsAboveInt32AsOutsideToo) {
  const TemporaryFolder folder;
  const TokenFile file(folder.write("big.bin", token_file_bytes({20240801, 7, 2}, words({1, -1}))));
  std::vector<std::int32_t> out(2);
  EXPECT_ERROR(file.read(0, out, 128256), ExitCode::bad_data, "4294967295", "token 1");
}

}  // namespace
}  // namespace baleen
