#include "data/byte_source.h"

#include <zstd.h>

#include "gzip.h"
#include "test_support.h"

namespace baleen {
namespace {

using test::gzip;
using test::TemporaryFolder;

std::string read_all(const std::filesystem::path& path, std::size_t at_a_time) {
  ByteSource source(path);
  std::string text;
  while (source.read(text, at_a_time) > 0) {
  }
  EXPECT_EQ(source.consumed(), std::filesystem::file_size(path));
  return text;
}

// Three quarters of a megabyte that do not pack to nothing, with every byte in them.
std::string sample() {
  std::string text;
  for (std::uint32_t i = 0; text.size() < (3u << 18); ++i) text += std::to_string(i * 2654435761u) + static_cast<char>(i);
  return text;
}

TEST(ByteSource, ReadsPlainAndPackedFilesAlike) {
  const TemporaryFolder folder;
  const std::string text = sample();
  for (const auto& path : {folder.write("a.txt", text), folder.write("a.txt.gz", gzip(text)), folder.write("named.txt", gzip(text))})
    for (const std::size_t at_a_time : {std::size_t{1000}, std::size_t{1} << 20, std::size_t{8} << 20})
      ASSERT_TRUE(read_all(path, at_a_time) == text) << path;
  EXPECT_EQ(read_all(folder.write("empty.gz", gzip("")), 100), "");
  EXPECT_EQ(read_all(folder.write("empty.txt", ""), 100), "");
}

TEST(ByteSource, ReadsArchivesOfSeveralMembersAndPadding) {
  const TemporaryFolder folder;
  const std::string text = sample();
  std::string archive, whole;
  for (int i = 0; i < 5; ++i) archive += gzip(text) + gzip("") + gzip("x"), whole += text + "x";
  EXPECT_TRUE(read_all(folder.write("many.gz", archive), 1 << 20) == whole);
  EXPECT_TRUE(read_all(folder.write("padded.gz", gzip(text) + std::string(700'000, '\0')), 1 << 20) == text);
}

TEST(ByteSource, SaysWhatIsWrongWithAnArchive) {
  const TemporaryFolder folder;
  const std::string archive = gzip(sample());
  std::string flipped = archive, checksum = archive;
  flipped[archive.size() / 2] ^= 0x55;
  checksum[archive.size() - 6] ^= 0x01;
  const std::tuple<std::string, std::string, std::string> files[]{
      {"cut.gz", archive.substr(0, archive.size() / 2), "truncated"},
      {"cut-trailer.gz", archive.substr(0, archive.size() - 3), "truncated"},
      {"cut-header.gz", archive.substr(0, 5), "truncated"},
      {"cut-second.gz", archive + archive.substr(0, 100), "truncated"},
      {"flipped.gz", flipped, "damaged"},
      {"checksum.gz", checksum, "damaged"},
      {"followed.gz", archive + "and text", "follows the archive"},
      {"after-padding.gz", archive + std::string(3, '\0') + archive, "follows the archive"},
      {"text.gz", "In the beginning", "not a gzip archive: it looks like text"},
      {"empty-file.gz", "", "not a gzip archive"},
      {"zip.txt", std::string("PK\x03\x04\0\0", 6), "zip archive"},
      {"zstd.jsonl", "\x28\xb5\x2f\xfd....", "zstd"},
      {"bzip2.txt", "BZh91AY&SY...", "bzip2"},
  };
  for (const auto& [name, content, message] : files)
    EXPECT_ERROR((void)read_all(folder.write(name, content), 1 << 20), ExitCode::bad_data, message, name);
  EXPECT_ERROR(ByteSource(folder / "missing.txt"), ExitCode::bad_data, "missing.txt", "No such file");
  EXPECT_ERROR(ByteSource(folder.path()), ExitCode::bad_data, "directory", folder.path().string());
}

TEST(ByteSource, TakesTextThatOnlyBeginsLikeSomethingElse) {
  const TemporaryFolder folder;
  for (const char* text : {"PAR1 is how Parquet begins", "GGUF", "PK", "BZh9 is bzip2", "\x1f\x8b", "%PDF"})
    EXPECT_EQ(read_all(folder.write("a.txt", text), 100), text);
}

std::string zstd(std::string_view text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

TEST(ByteSource, ReadsZstd) {
  const TemporaryFolder folder;
  const std::string text = sample();
  for (const std::size_t at_a_time : {std::size_t{1} << 20, std::size_t{777}}) {
    EXPECT_EQ(read_all(folder.write("a.zst", zstd(text)), at_a_time), text);
    EXPECT_EQ(read_all(folder.write("b.txt", zstd(text) + zstd("more")), at_a_time), text + "more");  // frames after one another
    EXPECT_EQ(read_all(folder.write("c.zst", zstd("")), at_a_time), "");
  }
  const std::string packed = zstd(text);
  EXPECT_ERROR(read_all(folder.write("cut.zst", packed.substr(0, packed.size() - 5)), 4096), ExitCode::bad_data, "cut.zst", "truncated");
  std::string damaged = packed;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  damaged.resize(damaged.size() / 2 + 40'000);
  EXPECT_THROW(read_all(folder.write("damaged.zst", damaged), 4096), Error);
  EXPECT_ERROR(read_all(folder.write("tail.zst", packed + "text"), 4096), ExitCode::bad_data, "tail.zst", "damaged");
  EXPECT_ERROR(ByteSource(folder.write("plain.zst", "In the beginning")), ExitCode::bad_data, "plain.zst", "not a zstd archive");
}

}  // namespace
}  // namespace baleen
