// Each family of models as a user trains it: a TOML config, loss that falls, text, layouts that agree.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

struct FamilyConfig {
  const char* name;
  const char* model;  // the [model] section
};

void PrintTo(const FamilyConfig& value, std::ostream* out) {
  *out << value.name;
}

class Families : public TrainingFixture, public ::testing::WithParamInterface<FamilyConfig> {
 protected:
  void SetUp() override {
    TrainingFixture::SetUp();
    const std::string usual = read_text(folder / "config.toml");
    write_text(folder / "config.toml", std::string("[model]\n") + GetParam().model + usual.substr(usual.find("[data]")));
  }
};

TEST_P(Families, LearnsAndGenerates) {
  const CommandResult trained = train("run", {"--ranks", "2"});
  ASSERT_EQ(trained.exit_code, 0) << trained.error;
  const auto all = rows("run");
  ASSERT_EQ(all.size(), 100u);
  EXPECT_LT(all.back()["loss"], 0.7 * all.front()["loss"]);
  const CommandResult text = run_baleen({"generate", folder / "run", "--prompt", "Line 1", "--tokens", "40", "--temperature", "0"});
  EXPECT_EQ(text.exit_code, 0) << text.error;
  EXPECT_GT(text.out.size(), 20u);
  // The resolved config and the checkpoint describe the same model: the finished run is recognised.
  const CommandResult again = run_baleen({"train", folder / "run/config.toml", "--ranks", "2", "--out", folder / "run"});
  EXPECT_EQ(again.exit_code, 0) << again.error;
  EXPECT_NE(again.error.find("finished"), std::string::npos) << again.error;
}

TEST_P(Families, LayoutsAgree) {
  const CommandResult result = run_baleen({"verify", folder / "config.toml", "--layouts", "dp=2;dp=3", "--ranks", "3", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.error << result.out;
  const auto report = parse_json(result.out, "output");
  ASSERT_EQ(report["layouts"].size(), 2u);
  for (const auto& layout : report["layouts"]) EXPECT_TRUE(layout["ok"].get<bool>()) << layout;
}

constexpr const char* qwen2 = R"(architecture = "qwen2"
hidden_size = 36
intermediate_size = 52
num_hidden_layers = 2
num_attention_heads = 6
num_key_value_heads = 2
tie_word_embeddings = true
)";
constexpr const char* qwen3 = R"(architecture = "qwen3"
hidden_size = 36
intermediate_size = 52
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 12
)";
constexpr const char* mistral = R"(architecture = "mistral"
hidden_size = 32
intermediate_size = 52
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
)";
constexpr const char* gpt2 = R"(architecture = "gpt2"
n_embd = 36
n_layer = 2
n_head = 4
n_positions = 48
)";

INSTANTIATE_TEST_SUITE_P(Cases, Families,
                         ::testing::Values(FamilyConfig{"Qwen2", qwen2}, FamilyConfig{"Qwen3", qwen3}, FamilyConfig{"Mistral", mistral},
                                           FamilyConfig{"Gpt2", gpt2}),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace baleen::testing
