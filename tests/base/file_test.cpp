#include "base/file.h"

#include <gtest/gtest.h>

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
  EXPECT_FALSE(fs::exists(folder / "taken.tmp"));
  EXPECT_FALSE(fs::exists(folder / "a.tmp"));
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
