// A model of llama2.c, imported, says what llama2.c says.
#include <gtest/gtest.h>

#include "support/command.h"
#include "support/paths.h"

namespace baleen::testing {
namespace {

class Llama2c : public ::testing::Test {
 protected:
  void SetUp() override {
    model = shared_data("stories260K.bin");
    tokenizer = shared_data("tok512.bin");
    expected = shared_data("stories260K.expected.txt");
    if (model.empty() || tokenizer.empty() || expected.empty()) GTEST_SKIP() << "../shared/data/stories260K.* and tok512.bin are not here";
  }
  CommandResult import_to(const std::string& out) const {
    return run_baleen({"import", model, "--tokenizer", tokenizer, "--out", folder / out});
  }
  CommandResult generate(const std::string& prompt) const {
    return run_baleen({"generate", folder / "out", "--prompt", prompt, "--tokens", "200", "--temperature", "0", "--threads", "1"});
  }
  TemporaryFolder folder;
  std::filesystem::path model, tokenizer, expected;
};

TEST_F(Llama2c, GeneratesItsText) {
  const CommandResult imported = import_to("out");
  ASSERT_EQ(imported.exit_code, 0) << imported.error;
  EXPECT_EQ(imported.out, "");
  const CommandResult empty = generate("");
  EXPECT_EQ(empty.exit_code, 0) << empty.error;
  EXPECT_EQ(empty.out, read_text(expected));
  // A prompt that is the beginning of that text is continued by the same words.
  const CommandResult prompted = generate("Once upon a time");
  EXPECT_EQ(prompted.exit_code, 0) << prompted.error;
  EXPECT_EQ(prompted.out.substr(0, 400), empty.out.substr(0, 400));
  EXPECT_EQ(import_to("out").exit_code, 2);  // it holds a checkpoint now
}

TEST_F(Llama2c, BadInputs) {
  const std::string whole = read_text(model);
  write_text(folder / "short.bin", whole.substr(0, 100'000));
  CommandResult result = run_baleen({"import", folder / "short.bin", "--out", folder / "out"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.error.find("truncated"), std::string::npos) << result.error;
  write_text(folder / "tok.bin", read_text(tokenizer).substr(0, 1000));
  result = run_baleen({"import", model, "--tokenizer", folder / "tok.bin", "--out", folder / "out"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.error.find("tok.bin"), std::string::npos) << result.error;
  EXPECT_EQ(run_baleen({"import", model, "--tokenizer", "bytes", "--out", folder / "out"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"import", expected, "--out", folder / "out"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"import", folder / "nowhere.bin", "--out", folder / "out"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"import", model}).exit_code, 2);
  EXPECT_EQ(run_baleen({"import", folder.path(), "--out", folder / "out"}).exit_code, 3);
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace baleen::testing
