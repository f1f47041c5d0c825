#include "support/training_fixture.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/json.h"

namespace baleen::testing {

double TrainingRow::operator[](const std::string& key) const {
  const std::string& text = fields.at(key);
  return text == "null" ? std::numeric_limits<double>::quiet_NaN() : std::stod(text);
}

void TrainingFixture::SetUp() {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "Line " + std::to_string(i * 7919 % 1000) + " of a text that is easy to learn.\n";
  write_text(folder / "corpus.txt", text);
  const CommandResult tokenized =
      run_baleen({"tokenize", "--tokenizer", "bytes", folder / "corpus.txt", "--out", folder / "corpus.bin", "--val-fraction", "0.1"});
  ASSERT_EQ(tokenized.exit_code, 0) << tokenized.error;
  write_config("");
}

void TrainingFixture::write_config(const std::string& extra) {
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

std::vector<std::string> TrainingFixture::train_arguments(const std::string& run, const std::vector<std::string>& more) const {
  std::vector<std::string> arguments{"train", folder / "config.toml", "--out", folder / run};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

CommandResult TrainingFixture::train(const std::string& run, const std::vector<std::string>& more) const {
  return run_baleen(train_arguments(run, more));
}

std::vector<TrainingRow> TrainingFixture::rows(const std::string& run) const {
  std::vector<TrainingRow> found;
  std::istringstream lines(read_text(std::filesystem::path(folder / run) / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) break;  // without its end: the run is still writing it
    const auto object = parse_json(line, run);
    TrainingRow row;
    for (const auto& [key, value] : object.items()) row.fields[key] = dump_json(value);
    if (row.contains("loss")) found.push_back(std::move(row));
  }
  return found;
}

namespace {

// Bounded, so that a run without an end that does not do what it should fails its test.
template <class Condition>
void wait_while_running(Command& command, const std::string& what, Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (command.running() && !condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << "waited 120 s for " << what;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

void TrainingFixture::wait_for_rows(Command& command, const std::string& run, std::size_t count) const {
  wait_while_running(command, std::to_string(count) + " steps", [&] { return rows(run).size() >= count; });
}

void TrainingFixture::wait_for_message(Command& command, const std::string& text) {
  wait_while_running(command, "'" + text + "'", [&] { return command.errors_so_far().find(text) != std::string::npos; });
}

std::string TrainingFixture::record(const std::string& run) const {
  std::string text;
  for (const TrainingRow& row : rows(run)) {
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) text += row.fields.at(key) + " ";
    text += "\n";
  }
  return text;
}

std::string TrainingFixture::weights(const std::string& run, const std::string& step) const {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(folder / run) / "checkpoints" / step))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string bytes;
  for (const auto& file : files) bytes += file.filename().string() + read_text(file);
  return bytes;
}

}  // namespace baleen::testing
