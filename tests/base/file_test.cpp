#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/error.h"
#include "support/command.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;

TEST(WriteFileAtomically, ReplacesOrLeavesNothingBehind) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(read_file(folder / "a"), "new");
  fs::create_directory(folder / "taken");
  EXPECT_THROW(write_file_atomically(folder / "taken", "text"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 2);
}

// A descriptor that somebody else has closed stands for a file system that fails at the end.
TEST(FileWriter, ClosingTellsOfFailuresOnce) {
  const TemporaryFolder folder;
  FileWriter sound(folder / "sound");
  sound.write("text");
  sound.close();
  sound.close();
  EXPECT_EQ(read_file(folder / "sound"), "text");
  const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);  // the number that the next file gets
  ::close(before);
  FileWriter failing(folder / "failing");
  failing.write("text");
  ASSERT_EQ(::close(before), 0);
  EXPECT_THROW(failing.close(), Error);
  EXPECT_NO_THROW(failing.close());
  write_plain_file(folder / "plain", "whole");
  EXPECT_EQ(read_file(folder / "plain"), "whole");
}

TEST(WriteFileAtomically, ManyWritersAndAReaderNeverSeeAMixture) {
  const TemporaryFolder folder;
  const std::string contents[2]{std::string(30'000, 'a'), std::string(70'000, 'b')};
  write_file_atomically(folder / "a", contents[0]);
  int failures[2]{};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer)
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 100; ++i) try {
          write_file_atomically(folder / "a", contents[writer]);
        } catch (const Error&) {
          ++failures[writer];
        }
    });
  int mixed = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string read = read_file(folder / "a");
    mixed += read == contents[0] || read == contents[1] ? 0 : 1;
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_EQ(failures[0] + failures[1], 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
}

TEST(FileReader, ReadsAtOffsetsAndSaysWhenTheFileHasShrunk) {
  const TemporaryFolder folder;
  testing::write_text(folder / "a", "0123456789");
  FileReader first(folder / "a");
  const FileReader reader = std::move(first);
  char out[4] = {};
  reader.read_at(6, out, 4);
  EXPECT_EQ(std::string(out, 4), "6789");
  reader.read_at(10, out, 0);
  fs::resize_file(folder / "a", 8);
  reader.read_at(4, out, 4);
  try {
    reader.read_at(6, out, 4);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    EXPECT_NE(std::string(error.what()).find("become shorter"), std::string::npos) << error.what();
    EXPECT_EQ(error.where(), (folder / "a").string());
  }
  EXPECT_THROW(FileReader(folder / "none"), Error);
}

}  // namespace
}  // namespace baleen
