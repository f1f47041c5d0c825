// Token files of LLMQ and Megatron, byte by byte as their formats say (docs/formats.md).
#include <cstring>

#include "data/token_file.h"
#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<std::int32_t> all_of(const TokenFile& file) {
  std::vector<std::int32_t> ids(file.size());
  file.read(0, ids, 70'000);
  return ids;
}

std::string llmq(std::vector<std::int32_t> header, const std::vector<std::int32_t>& tokens) {
  std::string bytes = "BIN.TOK\n" + bytes_of(header);
  bytes.resize(token_header_bytes, '\0');
  return bytes + bytes_of(tokens);
}

TEST(LlmqTokens, AreRead) {
  const TemporaryFolder folder;
  const TokenFile file(folder.write("a.bin", llmq({2, 4, 3, 70'000, 0}, {5, 69'999, 0})));
  EXPECT_EQ(file.format(), TokenFormat::llmq_int32);
  EXPECT_EQ(all_of(file), (std::vector<std::int32_t>{5, 69'999, 0}));
  EXPECT_EQ(summarise(file).max_id, 69'999u);
  std::vector<std::int32_t> one(1);
  EXPECT_ERROR(file.read(1, one, 60'000), ExitCode::bad_data, "69999", "token 1", "60000");
}

TEST(LlmqTokens, SayWhatIsWrong) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& content, const char* problem) {
    EXPECT_ERROR(TokenFile(folder.write("a.bin", content)), ExitCode::bad_data, "a.bin", problem);
  };
  refused(llmq({1, 4, 1, 9, 0}, {5}), "version 1");
  refused(llmq({2, 2, 1, 9, 0}, {5}), "2 bytes a token");
  refused(llmq({2, 4, 1, 9, 1}, {5}), "masks");
  refused(llmq({2, 4, 2, 9, 0}, {5}), "promises 2 tokens");
  refused(llmq({2, 4, 0, 9, 0}, {}), "without tokens");
  refused(llmq({2, 4, 1, 9, 0}, {5}).substr(0, 600), "shorter than its header");
}

struct Index {
  std::uint64_t version = 1;
  std::uint8_t dtype = 4;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> offsets, documents;
  std::string modes = "";
  std::string bytes() const {
    return std::string("MMIDIDX\0\0", 9) + bytes_of(std::vector{version}) + static_cast<char>(dtype) +
           bytes_of(std::vector<std::uint64_t>{lengths.size(), documents.size()}) + bytes_of(lengths) + bytes_of(offsets) +
           bytes_of(documents) + modes;
  }
};

TEST(MegatronTokens, OfEveryIntegerTypeAreRead) {
  const TemporaryFolder folder;
  const auto check = [&]<class T>(T, std::uint8_t dtype, TokenFormat format) {
    const auto width = static_cast<std::int64_t>(sizeof(T));
    folder.write("a.bin", bytes_of(std::vector<T>{1, 2, 3, 100, 7}));
    folder.write("a.idx", Index{1, dtype, {2, 3}, {0, 2 * width}, {0, 1, 2}}.bytes());
    const TokenFile file(folder / "a.bin");
    EXPECT_EQ(file.format(), format);
    EXPECT_EQ(all_of(file), (std::vector<std::int32_t>{1, 2, 3, 100, 7}));
    std::vector<std::int32_t> two(2);
    file.read(3, two, 101);
    EXPECT_EQ(two, (std::vector<std::int32_t>{100, 7}));
    EXPECT_ERROR(file.read(3, two, 100), ExitCode::bad_data, "id 100 at token 3");
    EXPECT_ERROR(file.check_ids(0, 5, 100), ExitCode::bad_data, "id 100 at token 3");
  };
  check(std::uint8_t{}, 1, TokenFormat::megatron_uint8);
  check(std::int8_t{}, 2, TokenFormat::megatron_int8);
  check(std::int16_t{}, 3, TokenFormat::megatron_int16);
  check(std::int32_t{}, 4, TokenFormat::megatron_int32);
  check(std::int64_t{}, 5, TokenFormat::megatron_int64);
  check(std::uint16_t{}, 8, TokenFormat::megatron_uint16);
}

TEST(MegatronTokens, NegativeAndLargeIdsAreNamed) {
  const TemporaryFolder folder;
  folder.write("a.bin", bytes_of(std::vector<std::int64_t>{1, -3, std::int64_t{1} << 33}));
  folder.write("a.idx", Index{1, 5, {3}, {0}, {0, 1}}.bytes());
  const TokenFile file(folder / "a.bin");
  std::vector<std::int32_t> one(1);
  EXPECT_ERROR(file.read(1, one, 100), ExitCode::bad_data, "id -3");
  EXPECT_ERROR(file.read(2, one, 100), ExitCode::bad_data, "id 8589934592");
}

TEST(MegatronTokens, SayWhatIsWrong) {
  const TemporaryFolder folder;
  folder.write("a.bin", bytes_of(std::vector<std::int32_t>{1, 2, 3}));
  const Index good{1, 4, {1, 2}, {0, 4}, {0, 2}, "ab"};  // with modes
  const auto refused = [&](const std::string& index, const char* problem) {
    folder.write("a.idx", index);
    EXPECT_ERROR(TokenFile(folder / "a.bin"), ExitCode::bad_data, "a.idx", problem);
  };
  folder.write("a.idx", good.bytes());
  EXPECT_EQ(TokenFile(folder / "a.bin").size(), 3u);
  Index bad = good;
  bad.version = 2;
  refused(bad.bytes(), "version 2");
  bad = good, bad.dtype = 7;
  refused(bad.bytes(), "dtype 7");
  bad = good, bad.lengths[1] = 3;
  refused(bad.bytes(), "16 bytes of tokens");
  bad = good, bad.lengths[0] = -1;
  refused(bad.bytes(), "length -1");
  bad = good, bad.offsets[1] = 8;
  refused(bad.bytes(), "sequence 1 does not follow");
  refused(good.bytes().substr(0, 20), "truncated");
  refused(good.bytes().substr(0, 40), "its counts ask for");
  refused(good.bytes() + "xyz", "its counts ask for");
  std::string many = good.bytes();
  std::memset(many.data() + 18, 0xff, 8);  // sequences
  refused(many, "truncated");
  // Without an index it is no token file.
  std::filesystem::remove(folder / "a.idx");
  EXPECT_ERROR(TokenFile(folder / "a.bin"), ExitCode::bad_data, "a.bin", "not a token file");
}

}  // namespace
}  // namespace baleen
