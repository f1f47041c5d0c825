// A model's folder as a user meets it: imported, trained on from model.path in another layout, exported, evaluated, spoken with.
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "support/paths.h"
#include "support/training_fixture.h"

namespace baleen::testing {
namespace {

class HuggingFaceFolders : public TrainingFixture {
 protected:
  void SetUp() override {
    TrainingFixture::SetUp();
    const CommandResult tokenized = run_baleen(
        {"tokenize", "--tokenizer", golden_file("tokenizers/smollm2"), folder / "corpus.txt", "--out", folder / "corpus.bin", "--val-fraction", "0.1"});
    ASSERT_EQ(tokenized.exit_code, 0) << tokenized.error;
  }
  static double loss_of(const std::string& dir, const std::string& data) {
    const CommandResult result = run_baleen({"eval", dir, "--data", data, "--json", "--threads", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return parse_json(result.out, "eval")["loss"].get<double>();
  }
  static std::string text_of(const std::string& dir) {
    const CommandResult result = run_baleen({"generate", dir, "--prompt", "Line 1", "--tokens", "30", "--temperature", "0", "--threads", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return result.out;
  }
};

TEST_F(HuggingFaceFolders, TrainExportTrainOnExport) {
  // A run exports itself at its end; what it exports is the model that it is.
  const CommandResult first = train("first", {"--ranks", "2", "--set", "checkpoint.export_hf=true"});
  ASSERT_EQ(first.exit_code, 0) << first.error;
  const std::string exported = folder / "first/export", data = folder / "corpus.val.bin";
  const double loss = loss_of(folder / "first", data);
  EXPECT_EQ(loss_of(exported, data), loss);
  EXPECT_EQ(text_of(exported), text_of(folder / "first"));
  EXPECT_EQ(read_text(std::filesystem::path(exported) / "tokenizer.json"), read_text(golden_file("tokenizers/smollm2/tokenizer.json")));

  // It comes in again, and a run goes on from it in another layout: at the loss where it was, and down.
  EXPECT_EQ(run_baleen({"import", exported, "--out", folder / "imported"}).exit_code, 0);
  EXPECT_EQ(read_text(folder / "imported/model.safetensors"), read_text(folder / "first/export/model.safetensors"));
  const std::string sections = read_text(folder / "config.toml");
  write_text(folder / "config.toml", "[model]\npath = \"" + (folder / "imported") + "\"\n" + sections.substr(sections.find("[data]")));
  const CommandResult second = train("second", {"--ranks", "3", "--set", "parallelism.zero=2", "--set", "training.global_batch_size=12", "--set", "training.steps=30",
                                                "--set", "optimizer.lr=1e-3"});
  ASSERT_EQ(second.exit_code, 0) << second.error;
  EXPECT_LT(rows("second").front()["loss"], rows("first").front()["loss"] / 2);
  EXPECT_LT(loss_of(folder / "second", data), loss);
  // The resolved config begins where the given one began.
  const CommandResult again = run_baleen({"train", folder / "second/config.toml", "--ranks", "3", "--out", folder / "again", "--set", "training.steps=1"});
  ASSERT_EQ(again.exit_code, 0) << again.error;
  EXPECT_EQ(rows("again").front()["loss"], rows("second").front()["loss"]);

  // Rounded, and as fp32.
  ASSERT_EQ(run_baleen({"export", folder / "second", "--out", folder / "half", "--dtype", "bf16"}).exit_code, 0);
  EXPECT_NEAR(loss_of(folder / "half", data), loss_of(folder / "second", data), 0.02);
  const auto held = parse_json(run_baleen({"inspect", folder / "half/model.safetensors", "--json"}).out, "inspect");
  for (const auto& tensor : held["tensors"]) EXPECT_EQ(tensor["dtype"], "BF16");
  EXPECT_EQ(run_baleen({"export", folder / "second", "--out", folder / "half"}).exit_code, 2);  // it is there
  EXPECT_EQ(text_of(folder / "half").substr(0, 6), "Line 1");
}

TEST_F(HuggingFaceFolders, BadFolders) {
  const auto refused = [&](const std::vector<std::string>& more, int code, const std::string& part) {
    const CommandResult result = train("run", more);
    EXPECT_EQ(result.exit_code, code) << result.error;
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
    EXPECT_EQ(result.error.find("rank 0"), std::string::npos) << result.error;  // before any rank starts
  };
  const std::string golden = golden_file("folders/qwen3").string();
  // The golden model is too small for the corpus' vocabulary, and its config.json can be made to disagree with its weights.
  const std::string sections = read_text(folder / "config.toml"), rest = sections.substr(sections.find("[data]"));
  write_text(folder / "config.toml", "[model]\npath = \"" + golden + "\"\n" + rest);
  refused({"--set", "model.num_hidden_layers=3", "--ranks", "2"}, 3, "model.layers.2.");
  refused({"--set", "model.vocab_size=703"}, 3, "[37, 24]");
  std::filesystem::create_directory(std::filesystem::path(folder / "empty"));
  write_text(folder / "empty/config.json", read_text(golden + "/config.json"));
  refused({"--set", "model.path=" + (folder / "empty"), "--set", "model.init=weights"}, 3, "no model.safetensors");
  refused({"--set", "model.path=" + (folder / "nowhere")}, 3, "nowhere");
  write_text(folder / "config.toml", sections);
  refused({"--set", "model.init=weights"}, 2, "without model.path");
  EXPECT_EQ(run_baleen({"export", folder / "nowhere", "--out", folder / "out"}).exit_code, 3);
  EXPECT_EQ(run_baleen({"export", golden, "--out", folder / "out", "--dtype", "fp8"}).exit_code, 2);
  const CommandResult silent = run_baleen({"generate", golden, "--prompt", "x"});
  EXPECT_EQ(silent.exit_code, 3);
  EXPECT_NE(silent.error.find("no tokenizer"), std::string::npos) << silent.error;
  // A window is refused by name.
  std::filesystem::copy(golden_file("folders/mistral"), std::filesystem::path(folder / "window"));
  auto config = parse_json(read_text(folder / "window/config.json"), "");
  config["sliding_window"] = 16;
  write_text(folder / "window/config.json", dump_json(config));
  const CommandResult window = run_baleen({"import", folder / "window", "--out", folder / "out"});
  EXPECT_EQ(window.exit_code, 2);
  EXPECT_NE(window.error.find("sliding_window"), std::string::npos) << window.error;
}

}  // namespace
}  // namespace baleen::testing
