#include "base/temporary_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/command.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using Kind = TemporaryPath::Kind;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(TemporaryPath, EachWriterHasItsOwnAndTheLastFileWins) {
  const TemporaryFolder folder;
  TemporaryPath one(folder / "a", Kind::file), two(folder / "a", Kind::file);
  EXPECT_NE(one.path(), two.path());
  testing::write_text(one.path(), "one");
  testing::write_text(two.path(), "two");
  two.publish();
  EXPECT_EQ(testing::read_text(folder / "a"), "two");
  one.publish();
  EXPECT_EQ(testing::read_text(folder / "a"), "one");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
}

TEST(TemporaryPath, TheFirstFolderWinsAndTheLoserIsTold) {
  const TemporaryFolder folder;
  {
    TemporaryPath one(folder / "a/", Kind::folder), two(folder / "a", Kind::folder);
    testing::write_text(one.path() / "file", "one");
    testing::write_text(two.path() / "file", "two");
    two.publish();
    try {
      one.publish();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_config);
      EXPECT_NE(std::string(error.what()).find("another process"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(testing::read_text(folder / "a/file"), "two");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
}

TEST(TemporaryPath, WhatKilledWritersLeftIsRemovedAndNothingElse) {
  const TemporaryFolder folder;
  for (const char* name : {"a.tmp-0123abcd", "a.tmp-0123abc", "a.tmp", "b.tmp-0123abcd"}) testing::write_text(folder / name, "text");
  fs::create_directories(folder / "a.incomplete-0123abcd/inner");
  {
    const TemporaryPath file(folder / "a", Kind::file), inner(folder / "a", Kind::folder);
    const TemporaryPath second(folder / "a", Kind::file), outer(folder / "a", Kind::folder);
    EXPECT_TRUE(fs::exists(file.path()) && fs::exists(inner.path()));  // theirs are alive
    EXPECT_EQ(names_in(folder.path()).size(), 7u);
  }
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a.tmp", "a.tmp-0123abc", "b.tmp-0123abcd"}));
}

TEST(TemporaryPath, SaysWhatCannotBeMade) {
  const TemporaryFolder folder;
  testing::write_text(folder / "file", "text");
  EXPECT_THROW(TemporaryPath(folder / "none/a", Kind::file), Error);
  EXPECT_THROW(TemporaryPath(folder / "file/a", Kind::folder), Error);
}

}  // namespace
}  // namespace baleen
