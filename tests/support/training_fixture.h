// A small corpus and a configuration that trains in a second, for tests that run the program.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "support/command.h"

namespace baleen::testing {

// A line of metrics.jsonl.
struct TrainingRow {
  std::map<std::string, std::string> fields;  // the values as JSON
  bool contains(const std::string& key) const { return fields.contains(key); }
  double operator[](const std::string& key) const;  // NaN for null
};

class TrainingFixture : public ::testing::Test {
 protected:
  void SetUp() override;

  // The usual configuration with `extra` lines of TOML behind it.
  void write_config(const std::string& extra);

  std::vector<std::string> train_arguments(const std::string& run, const std::vector<std::string>& more = {}) const;
  CommandResult train(const std::string& run, const std::vector<std::string>& more = {}) const;

  // The training rows of RUN/metrics.jsonl; each line must be whole.
  std::vector<TrainingRow> rows(const std::string& run) const;
  // Waits until the run has `count` of them or the program has ended.
  void wait_for_rows(Command& command, const std::string& run, std::size_t count) const;
  // Until the run has printed this, or ended.
  static void wait_for_message(Command& command, const std::string& text);
  // What must not change however a run came about: step, loss, grad_norm, lr and tokens of each step, as text.
  std::string record(const std::string& run) const;
  // The bytes of all safetensors files of a checkpoint.
  std::string weights(const std::string& run, const std::string& step) const;

  struct Folder : TemporaryFolder {
    std::string operator/(const std::string& name) const { return (path() / name).string(); }
  };
  Folder folder;
};

}  // namespace baleen::testing
