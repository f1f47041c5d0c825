// What the tests of src/data/ share: a folder of their own, shared files, a small vocabulary, and errors as values.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/base64.h"
#include "support/paths.h"

namespace baleen::test {

// A folder that is gone with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "baleen_data_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  // Writes a file in the folder and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  // The names of what is in the folder, sorted, with a space behind each.
  std::string listing() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    std::string text;
    for (const auto& name : names) text += name + " ";
    return text;
  }

 private:
  std::filesystem::path path_;
};

// A file of the project's shared folder; skips the test where it is absent.
#define BALEEN_SHARED_FILE(variable, name)                           \
  const std::filesystem::path variable = testing::shared_data(name); \
  if (variable.empty()) GTEST_SKIP() << "no " << name << " here; set BALEEN_SHARED to the folder that has data/"

// Runs `body` and returns the Error it threw; without one the test has failed and an Error of code done comes back.
template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ExitCode::done, "");
}

// The error has this code, and its message each of the parts.
#define EXPECT_ERROR(statement, expected_code, ...)                                                                         \
  do {                                                                                                                      \
    const ::baleen::Error thrown = ::baleen::test::error_of([&] { statement; });                                            \
    EXPECT_EQ(static_cast<int>(thrown.code()), static_cast<int>(expected_code)) << thrown.what();                           \
    for (const std::string& part : std::initializer_list<std::string>{__VA_ARGS__})                                         \
      EXPECT_NE(std::string(thrown.what()).find(part), std::string::npos) << "no \"" << part << "\" in\n" << thrown.what(); \
  } while (false)

// The ranks of a small vocabulary: the 256 bytes in order, then a few words. A rank file.
inline std::string small_rank_file() {
  std::string text;
  int rank = 0;
  for (int value = 0; value < 256; ++value)
    text += encode_base64(std::string(1, static_cast<char>(value))) + " " + std::to_string(rank++) + "\n";
  for (const char* token :
       {"th", "he", "the", " t", " the", "in", "an", "and", " a", " and", "  ", "\n\n", "er", "ing", " in", "\xd0\xb8", " \xd0\xb8"})
    text += encode_base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

}  // namespace baleen::test
