// The file of methods: what was kept comes back, anything else counts as empty and is written anew. Needs no GPU.
#include "ops/gpu/matmul_methods.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace baleen::ops::gpu {
namespace {

class MatmulMethods : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::path(::testing::TempDir()) / ("methods-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    path = folder / "deeper" / "methods.txt";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::string content() const {
    std::ostringstream all;
    all << std::ifstream(path).rdbuf();
    return all.str();
  }
  void replace(const std::string& text) const { std::ofstream(path) << text; }

  static ProductKey key(std::int64_t rows) { return {rows, 2, -3}; }
  static MethodBits bits(std::uint64_t first) { return {first, ~std::uint64_t{0}}; }

  std::filesystem::path folder, path;
};

TEST_F(MatmulMethods, AreThereInTheNextRun) {
  MethodFile(path, "GPU, library 1").add(key(1), bits(7));
  MethodFile again(path, "GPU, library 1");
  EXPECT_EQ(again.find(key(1)), bits(7));
  EXPECT_EQ(again.find(key(2)), std::nullopt);
  again.add(key(2), bits(8));
  again.add(key(1), bits(9));
  EXPECT_EQ(MethodFile(path, "GPU, library 1").find(key(1)), bits(9));
  EXPECT_EQ(MethodFile(path, "GPU, library 1").find(key(2)), bits(8));
}

TEST_F(MatmulMethods, OfAnotherLibraryAreNotTaken) {
  MethodFile(path, "GPU, library 1").add(key(1), bits(7));
  MethodFile other(path, "GPU, library 2");
  EXPECT_EQ(other.find(key(1)), std::nullopt);
  other.add(key(3), bits(1));
  EXPECT_EQ(MethodFile(path, "GPU, library 2").find(key(1)), std::nullopt);  // not mixed
  EXPECT_EQ(MethodFile(path, "GPU, library 2").find(key(3)), bits(1));
}

TEST_F(MatmulMethods, OfADamagedFileAreNotTaken) {
  MethodFile(path, "GPU").add(key(1), bits(7));
  const std::string whole = content();
  std::vector<std::string> damaged{"", "checksum ", whole.substr(0, whole.size() / 2), whole + "x"};
  for (std::size_t i = 0; i < whole.size(); i += 5) {
    damaged.push_back(whole);
    damaged.back()[i] ^= 1;
  }
  for (const std::string& text : damaged) {
    replace(text);
    EXPECT_EQ(MethodFile(path, "GPU").find(key(1)), std::nullopt) << text;
    MethodFile(path, "GPU").add(key(2), bits(5));
    EXPECT_EQ(MethodFile(path, "GPU").find(key(2)), bits(5));
  }
}

TEST_F(MatmulMethods, AreKeptInMemoryWhereNothingCanBeWritten) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "deeper") << "a file where the folder should be";
  MethodFile file(path, "GPU");
  file.add(key(1), bits(7));
  EXPECT_EQ(file.find(key(1)), bits(7));
  MethodFile nowhere("", "GPU");
  nowhere.add(key(1), bits(7));
  EXPECT_EQ(nowhere.find(key(1)), bits(7));
}

}  // namespace
}  // namespace baleen::ops::gpu
