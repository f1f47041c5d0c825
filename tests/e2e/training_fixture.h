// A small corpus and a configuration that trains in a second, for tests that run the program.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/command.h"

namespace baleen::testing {

class TrainingFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "Line " + std::to_string(i * 7919 % 1000) + " of a text that is easy to learn.\n";
    write_text(folder / "corpus.txt", text);
    const CommandResult tokenized =
        run_baleen({"tokenize", "--tokenizer", "bytes", folder / "corpus.txt", "--out", folder / "corpus.bin", "--val-fraction", "0.1"});
    ASSERT_EQ(tokenized.exit_code, 0) << tokenized.error;
    write_config("");
  }

  // The usual configuration with `extra` lines of TOML behind it.
  void write_config(const std::string& extra) {
    write_text(folder / "config.toml", R"([model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = true
[data]
train = "corpus.bin"
validation = "corpus.val.bin"
[optimizer]
lr = 3e-3
[training]
steps = 100
sequence_length = 32
micro_batch_size = 2
global_batch_size = 8
dtype = "fp32"
threads = 1
)" + extra);
  }

  std::vector<std::string> train_arguments(const std::string& run, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"train", folder / "config.toml", "--out", folder / run};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  CommandResult train(const std::string& run, const std::vector<std::string>& more = {}) const { return run_baleen(train_arguments(run, more)); }

  // The training rows of RUN/metrics.jsonl; each line must be whole.
  std::vector<nlohmann::json> rows(const std::string& run) const {
    std::vector<nlohmann::json> found;
    std::istringstream lines(read_text(std::filesystem::path(folder / run) / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto row = parse_json(line, "output");
      if (row.contains("loss")) found.push_back(row);
    }
    return found;
  }
  // What must not change however a run came about: loss, grad_norm, lr and tokens of each step, as text.
  std::string record(const std::string& run) const {
    std::string text;
    for (const auto& row : rows(run))
      text += dump_json(row["step"]) + " " + dump_json(row["loss"]) + " " + dump_json(row["grad_norm"]) + " " + dump_json(row["lr"]) + " " + dump_json(row["tokens"]) + "\n";
    return text;
  }
  // The bytes of all safetensors files of a checkpoint.
  std::string weights(const std::string& run, const std::string& step) const {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder / run) / "checkpoints" / step))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::string bytes;
    for (const auto& file : files) bytes += file.filename().string() + read_text(file);
    return bytes;
  }

  struct Folder : TemporaryFolder {
    std::string operator/(const std::string& name) const { return (path() / name).string(); }
  };
  Folder folder;
};

}  // namespace baleen::testing
