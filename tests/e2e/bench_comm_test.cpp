// `baleen bench comm` as a user types it.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/command.h"

namespace baleen::testing {
namespace {

TEST(BenchComm, EveryCollectiveAsJson) {
  for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"}) {
    const CommandResult result =
        run_baleen({"bench", "comm", "--ranks", "2", "--backend", "shm", "--op", op, "--sizes", "4K:16K", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto json = parse_json(result.out, "output");
    EXPECT_EQ(json["op"], op);
    EXPECT_EQ(json["backend"], "shm");
    EXPECT_EQ(json["ranks"], 2);
    ASSERT_EQ(json["rows"].size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto& row = json["rows"][i];
      EXPECT_EQ(row["bytes"], std::size_t{4096} << i);
      EXPECT_EQ(row["wrong"], 0);
      EXPECT_GT(row["time_us"].get<double>(), 0);
      EXPECT_GT(row["busbw_gbs"].get<double>(), 0);
      EXPECT_LE(row["busbw_gbs"].get<double>(), row["algbw_gbs"].get<double>());
    }
  }
}

TEST(BenchComm, TableHasOneLineASize) {
  const CommandResult result = run_baleen({"bench", "comm", "--ranks", "2", "--op", "all_reduce", "--sizes", "4K:8K"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4) << result.out;
}

TEST(BenchComm, BadCommandLines) {
  const auto refused = [](const std::vector<std::string>& more, const char* word) {
    std::vector<std::string> arguments{"bench", "comm"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = run_baleen(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.error.find(word), std::string::npos) << result.error;
  };
  refused({"--ranks", "2"}, "--op");
  refused({"--ranks", "2", "--op", "all_reduc"}, "all_to_all");
  refused({"--ranks", "2", "--op", "all_reduce", "--backend", "mpi"}, "mpirun -n 2");
  refused({"--ranks", "2", "--op", "all_reduce", "--backend", "tcp"}, "use --backend \"shm\"");
  refused({"--op", "all_reduce", "--backend", "tcp"}, "use backend \"shm\"");
  refused({"--ranks", "2", "--op", "all_reduce", "--backend", "gloo"}, "no backend named");
  refused({"--ranks", "2", "--op", "all_reduce", "--sizes", "4X"}, "--sizes");
  refused({"--ranks", "2", "--op", "all_reduce", "--sizes", "8K:4K"}, "above the last");
  refused({"--ranks", "0", "--op", "all_reduce"}, "--ranks");
  refused({"--ranks", "1", "--op", "send_recv"}, "two ranks");
  refused({"--ranks", "2", "--op", "all_reduce", "--no-peer-copies"}, "no copies between GPUs");
}

}  // namespace
}  // namespace baleen::testing
