// Any folder that holds a trained model: a run (its latest checkpoint) or a checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/reader.h"
#include "data/tokenizer/tokenizer.h"
#include "model/model_config.h"
#include "sharding/unit_storage.h"

namespace baleen {

class ModelFolder {
 public:
  // Throws Error(bad_data) where the folder holds no model, saying what it looked for.
  explicit ModelFolder(const std::filesystem::path& folder);

  const std::filesystem::path& directory() const { return reader_->directory(); }
  const ModelConfig& config() const { return config_; }
  // nullptr where the model carries none.
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  void load_weights(UnitStorage& units);

 private:
  std::optional<checkpoint::CheckpointReader> reader_;
  ModelConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace baleen
