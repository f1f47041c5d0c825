// Every safetensors vector of the shared folder gets its verdict from the command, and a refusal says what is wrong.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/command.h"
#include "support/paths.h"

namespace baleen::testing {
namespace {

TEST(Inspect, GivesEveryVectorItsVerdictAndTheReason) {
  const auto folder = shared_data("safetensors");
  if (folder.empty()) GTEST_SKIP() << "the shared folder is not here";
  const std::map<std::string, std::string> reasons{{"01_", "duplicate key 'a'"},
                                                   {"02_", "duplicate key 'a'"},
                                                   {"04_", "duplicate key '__metadata__'"},
                                                   {"06_", "duplicate key 'dtype'"},
                                                   {"08_", "is not a string"},
                                                   {"10_", "does not start with '{'"},
                                                   {"12_", "NUL at byte"},
                                                   {"14_", "are not two non-negative integers"},
                                                   {"16_", "dimension 2.0 is not a non-negative integer"},
                                                   {"18_", "unknown dtype 'Q4'"},
                                                   {"20_", "overlap before tensor 'b'"},
                                                   {"22_", "truncated: the header describes"},
                                                   {"24_", "overflows 64 bits"},
                                                   {"30_", "truncated: the header has"},
                                                   {"32_", "the format allows 100000000"},
                                                   {"36_", "does not start with '{'"},
                                                   {"38_", "Git LFS pointer"}};
  const auto verdicts = parse_json(read_text(folder / "expected.json"), "expected.json");
  std::size_t refused = 0;
  for (const auto& [name, verdict] : verdicts.items()) {
    SCOPED_TRACE(name);
    const CommandResult result = run_baleen({"inspect", folder / name});
    EXPECT_EQ(result.exit_code, verdict == "accept" ? 0 : 3) << result.error;
    if (verdict == "accept") continue;
    ++refused;
    EXPECT_NE(result.error.find(reasons.at(name.substr(0, 3))), std::string::npos) << result.error;
    EXPECT_NE(result.error.find(name), std::string::npos) << result.error;
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(refused, reasons.size());
}

}  // namespace
}  // namespace baleen::testing
