// torchrun as the launcher: its environment, without it.
#include <unistd.h>

#include "e2e/training_fixture.h"

namespace baleen::testing {
namespace {

class Torchrun : public TrainingFixture {
 protected:
  // What torchrun sets for a worker. The port names the job and need not be free: nobody listens there.
  static std::map<std::string, std::string> environment_of(int rank) {
    return {{"RANK", std::to_string(rank)},  {"LOCAL_RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},
            {"LOCAL_WORLD_SIZE", "2"},       {"MASTER_ADDR", "127.0.0.1"},        {"MASTER_PORT", std::to_string(20000 + getpid() % 20000)}};
  }
};

TEST_F(Torchrun, TrainsToTheBitsOfOurOwnRanks) {
  const std::vector<std::string> steps{"--set", "training.steps=6", "--set", "checkpoint.every=0"};
  {
    const auto arguments = baleen_arguments(train_arguments("torchrun", steps));
    Command first(arguments, environment_of(0)), second(arguments, environment_of(1));
    const CommandResult one = first.wait(), two = second.wait();
    ASSERT_EQ(one.exit_code, 0) << one.error;
    ASSERT_EQ(two.exit_code, 0) << two.error;
  }
  std::vector<std::string> own = steps;
  own.insert(own.end(), {"--ranks", "2"});
  const CommandResult result = train("own", own);
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(rows("torchrun").size(), 6u);
  EXPECT_EQ(record("torchrun"), record("own"));
  EXPECT_EQ(weights("torchrun", "step_00000006"), weights("own", "step_00000006"));
}

TEST_F(Torchrun, RanksGivenBesideItAreRefused) {
  Command command(baleen_arguments(train_arguments("run", {"--ranks", "2"})), environment_of(0));
  const CommandResult result = command.wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.error.find("torchrun"), std::string::npos) << result.error;
  EXPECT_NE(result.error.find("--ranks"), std::string::npos) << result.error;
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

}  // namespace
}  // namespace baleen::testing
