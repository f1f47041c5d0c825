// TensorBoard's events of a run say what its metrics.jsonl says.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/event_reader.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

using Events = TrainingFixture;

TEST_F(Events, AreTheMetricsAlsoAfterAResume) {
  const std::vector<std::string> common{"--ranks", "2", "--set", "training.eval_every=4", "--set", "checkpoint.every=5"};
  const auto until = [&](const char* steps) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--set", std::string("training.steps=") + steps});
    const CommandResult result = train("run", arguments);
    ASSERT_EQ(result.exit_code, 0) << result.error;
  };
  until("8");
  std::filesystem::remove_all(folder / "run/checkpoints/step_00000008");  // the run goes on from step 5
  until("10");
  const EventFile events = read_events(folder / "run/events");
  std::size_t numbers = 0;
  std::istringstream lines(read_text(folder / "run/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto row = parse_json(line, "output");
    for (const auto& [name, value] : row.items()) {
      if (name == "step" || value.is_null()) continue;
      const auto found = events.scalars.find({name, row["step"].get<std::int64_t>()});
      ASSERT_NE(found, events.scalars.end()) << name << " of step " << row["step"];
      EXPECT_EQ(found->second, static_cast<float>(value.get<double>())) << name << " of step " << row["step"];
      ++numbers;
    }
  }
  EXPECT_EQ(events.scalars.size(), numbers);  // and nothing else
  EXPECT_TRUE(events.scalars.contains({"val_loss", 8}));
  EXPECT_TRUE(events.scalars.contains({"loss", 10}));
}

TEST_F(Events, CanBeTurnedOff) {
  const CommandResult result = train("run", {"--set", "training.steps=2", "--set", "metrics.tensorboard=false"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/events"));
}

}  // namespace
}  // namespace baleen::testing
