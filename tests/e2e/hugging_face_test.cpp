// A model's folder as a user meets it: imported, trained on from model.path in another layout, exported, evaluated, spoken with.
#include <cstring>
#include <limits>
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
    const CommandResult tokenized = run_baleen({"tokenize", "--tokenizer", golden_file("tokenizers/smollm2"), folder / "corpus.txt",
                                                "--out", folder / "corpus.bin", "--val-fraction", "0.1"});
    ASSERT_EQ(tokenized.exit_code, 0) << tokenized.error;
  }
  static double loss_of(const std::string& dir, const std::string& data) {
    const CommandResult result = run_baleen({"eval", dir, "--data", data, "--json", "--threads", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return parse_json(result.out, "eval")["loss"].get<double>();
  }
  static std::string text_of(const std::string& dir) {
    const CommandResult result =
        run_baleen({"generate", dir, "--prompt", "Line 1", "--tokens", "30", "--temperature", "0", "--threads", "1"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return result.out;
  }
};

TEST_F(HuggingFaceFolders, WeightsThatAreNoNumbersAreNamed) {
  ASSERT_EQ(train("run", {"--set", "training.steps=1"}).exit_code, 0);
  const std::string exported = folder / "exported", file = folder / "exported/model.safetensors";
  ASSERT_EQ(run_baleen({"export", folder / "run", "--out", exported}).exit_code, 0);
  std::string bytes = read_text(file);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto tensors = parse_json(bytes.substr(sizeof header, header), file);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(tensors["model.norm.weight"]["dtype"], "F32");
  std::memcpy(bytes.data() + sizeof header + header + tensors["model.norm.weight"]["data_offsets"][0].get<std::size_t>(), &bad, sizeof bad);
  write_text(file, bytes);
  const auto fails = [&](const std::vector<std::string>& arguments, const std::string& words) {
    const CommandResult result = run_baleen(arguments);
    EXPECT_EQ(result.exit_code, 5) << result.error;
    EXPECT_NE(result.error.find(words), std::string::npos) << result.error;
    return result.out;
  };
  const std::string named = "not finite: model.norm.weight (rank 0)";
  EXPECT_NE(fails({"eval", exported, "--data", folder / "corpus.val.bin", "--json"}, named).find("\"loss\":null"), std::string::npos);
  fails({"eval", exported, "--data", folder / "corpus.val.bin", "--ranks", "2"}, named);
  fails({"generate", exported, "--prompt", "Line 1", "--tokens", "5"}, "logits are not finite");
}

// The ids fit, whatever they mean.
TEST_F(HuggingFaceFolders, DataOfAnotherTokenizerAreDoubted) {
  ASSERT_EQ(train("run", {"--set", "training.steps=1"}).exit_code, 0);
  ASSERT_EQ(run_baleen({"export", folder / "run", "--out", folder / "exported"}).exit_code, 0);
  ASSERT_EQ(run_baleen({"tokenize", "--tokenizer", "bytes", folder / "corpus.txt", "--out", folder / "bytes.bin"}).exit_code, 0);
  const std::string sections = read_text(folder / "config.toml");
  write_text(folder / "config.toml", "[model]\npath = \"" + (folder / "exported") + "\"\n" + sections.substr(sections.find("[data]")));
  const std::string doubt = "the data's tokenizer has 257 tokens";
  const CommandResult own = train("own", {"--set", "training.steps=1"}),
                      other = train("other", {"--set", "training.steps=1", "--set", "data.train=bytes.bin", "--set", "comm.bucket_mb=1"});
  EXPECT_EQ(own.exit_code, 0) << own.error;
  EXPECT_EQ(own.error.find(doubt), std::string::npos) << own.error;
  EXPECT_EQ(other.exit_code, 0) << other.error;
  EXPECT_NE(other.error.find(doubt), std::string::npos) << other.error;
  EXPECT_NE(other.error.find("comm.bucket_mb = 1 has no effect"), std::string::npos) << other.error;
}

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
  const CommandResult second = train("second", {"--ranks", "3", "--set", "parallelism.zero=2", "--set", "training.global_batch_size=12",
                                                "--set", "training.steps=30", "--set", "optimizer.lr=1e-3"});
  ASSERT_EQ(second.exit_code, 0) << second.error;
  EXPECT_LT(rows("second").front()["loss"], rows("first").front()["loss"] / 2);
  EXPECT_LT(loss_of(folder / "second", data), loss);
  for (const std::string degree : {"tensor", "pipeline", "context"}) {
    const CommandResult sliced = train(degree, {"--ranks", "2", "--set", "parallelism." + degree + "=2", "--set",
                                                "training.global_batch_size=12", "--set", "training.steps=1"});
    ASSERT_EQ(sliced.exit_code, 0) << sliced.error;
    EXPECT_NEAR(rows(degree).front()["loss"], rows("second").front()["loss"], 1e-5) << degree;
  }
  // The resolved config begins where the given one began.
  const CommandResult again =
      run_baleen({"train", folder / "second/config.toml", "--ranks", "3", "--out", folder / "again", "--set", "training.steps=1"});
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

// A reference that is no number is to blame itself, not the layouts: verify measures none.
TEST_F(HuggingFaceFolders, VerifyNamesWeightsThatAreNoNumbers) {
  write_config("[parallelism]\n");
  ASSERT_EQ(train("run", {"--set", "training.steps=1", "--set", "checkpoint.export_hf=true"}).exit_code, 0);
  const std::string file = folder / "run/export/model.safetensors";
  std::string bytes = read_text(file);
  bytes.replace(bytes.size() - 4, 4, std::string("\x00\x00\xc0\x7f", 4));  // fp32's NaN
  write_text(file, bytes);
  const std::string sections = read_text(folder / "config.toml");
  write_text(folder / "config.toml", "[model]\npath = \"" + (folder / "run/export") + "\"\n" + sections.substr(sections.find("[data]")));
  for (const std::string dtype : {"fp32", "bf16"}) {
    const CommandResult result =
        run_baleen({"verify", folder / "config.toml", "--layouts", "dp=2;tp=2", "--ranks", "2", "--set", "training.dtype=" + dtype});
    EXPECT_EQ(result.exit_code, 5) << result.out << result.error;
    EXPECT_EQ(result.out, "");
    for (const std::string& words :
         {std::string("the reference itself"), std::string("weights are not finite themselves: model."), folder / "run/export"})
      EXPECT_NE(result.error.find(words), std::string::npos) << words << " is not in: " << result.error;
  }
}

// Accuracy on choices, and the loss, are the same whatever the layout that computes them.
TEST_F(HuggingFaceFolders, EvaluatesInAnyLayout) {
  write_config("[parallelism]\n");
  ASSERT_EQ(run_baleen({"tokenize", "--tokenizer", "bytes", folder / "corpus.txt", "--out", folder / "corpus.bin", "--val-fraction", "0.1"})
                .exit_code,
            0);
  ASSERT_EQ(train("run", {"--ranks", "2", "--set", "model.max_position_embeddings=64"}).exit_code, 0);
  // Choices behind "Line 1": the corpus' own words, and others of the same letters.
  std::vector<std::uint16_t> words;
  const std::vector<std::string> choices{"tfo a text", " of a text", "xet a fo t", "fo txet a "};
  constexpr int examples = 5;
  for (int number = 0; number < examples; ++number) {
    const std::string context = "Line " + std::to_string(100 + number);
    std::vector<std::uint16_t> example{65535, 0, static_cast<std::uint16_t>(number), 1, 4, static_cast<std::uint16_t>(context.size())};
    example.insert(example.end(), context.begin(), context.end());
    for (const std::string& choice : choices) {
      example.push_back(static_cast<std::uint16_t>(choice.size()));
      example.insert(example.end(), choice.begin(), choice.end());
    }
    example[1] = static_cast<std::uint16_t>(2 * example.size());
    words.insert(words.end(), example.begin(), example.end());
  }
  std::vector<std::int32_t> header{20240522, 1, examples, 200};
  header.resize(256);
  write_text(folder / "choices.bin", std::string(reinterpret_cast<const char*>(header.data()), 1024) +
                                         std::string(reinterpret_cast<const char*>(words.data()), 2 * words.size()));
  for (const std::string layout : {"dp=1", "dp=2,zero=3", "tp=2", "dp=3", "pp=2", "cp=2"}) {
    const CommandResult result =
        run_baleen({"eval", folder / "run", "--data", folder / "choices.bin", "--layout", layout, "--json", "--threads", "1"});
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto report = parse_json(result.out, layout);
    EXPECT_EQ(report["examples"], examples) << layout;
    EXPECT_EQ(report["accuracy"], 1.0) << layout << result.out;
  }
  const double expected = loss_of(folder / "run", folder / "corpus.val.bin");
  for (const std::string layout : {"dp=2,zero=3", "tp=2", "pp=2", "cp=2"}) {
    const CommandResult result =
        run_baleen({"eval", folder / "run", "--data", folder / "corpus.val.bin", "--layout", layout, "--json", "--threads", "1"});
    ASSERT_EQ(result.exit_code, 0) << result.error;
    EXPECT_NEAR(parse_json(result.out, layout)["loss"].get<double>(), expected, 1e-6 * expected) << layout;
  }
  EXPECT_EQ(run_baleen({"eval", folder / "run", "--data", folder / "choices.bin", "--layout", "tp=2", "--ranks", "3"}).exit_code, 2);
  EXPECT_EQ(run_baleen({"eval", folder / "run", "--data", folder / "choices.bin", "--layout", "tp=3"}).exit_code, 2);
}

// A mixture resumes with the bits that it would have had.
TEST_F(HuggingFaceFolders, MixturesResumeExactly) {
  std::filesystem::copy_file(folder / "corpus.bin", folder / "other.bin");
  std::filesystem::copy_file(folder / "corpus.json", folder / "other.json");
  const std::vector<std::string> mixed{
      "--ranks",           "2", "--set", "data.train=[\"corpus.bin\", \"other.bin\"]", "--set", "data.weights=[0.7, 0.3]", "--set",
      "checkpoint.every=7"};
  const auto with = [&](const char* steps) {
    std::vector<std::string> more = mixed;
    more.insert(more.end(), {"--set", std::string("training.steps=") + steps});
    return more;
  };
  ASSERT_EQ(train("whole", with("14")).exit_code, 0);
  ASSERT_EQ(train("parts", with("7")).exit_code, 0);
  const CommandResult rest = train("parts", with("14"));
  ASSERT_EQ(rest.exit_code, 0) << rest.error;
  EXPECT_NE(rest.error.find("resumed"), std::string::npos) << rest.error;
  EXPECT_EQ(record("parts"), record("whole"));
  // The resolved config says the same mixture; another one is another run.
  EXPECT_EQ(run_baleen({"train", folder / "parts/config.toml", "--ranks", "2", "--out", folder / "parts"}).exit_code, 0);
  std::vector<std::string> other = with("20");
  other.insert(other.end(), {"--set", "data.weights=[0.5, 0.5]"});
  const CommandResult refused = train("parts", other);
  EXPECT_EQ(refused.exit_code, 2) << refused.error;
  EXPECT_NE(refused.error.find("data.weights"), std::string::npos) << refused.error;
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
  for (const char* other : {"pytorch_model.bin", "weights.safetensors", "model.gguf"}) {
    write_text(folder / ("empty/" + std::string(other)), "weights");
    refused({"--set", "model.path=" + (folder / "empty"), "--ranks", "2"}, 3, other);
    std::filesystem::remove(folder / ("empty/" + std::string(other)));
  }
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
