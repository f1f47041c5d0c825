// Any folder that holds a trained model: a run (its latest checkpoint), a checkpoint, or a Hugging Face folder (also what `baleen import`
// and `baleen export` write).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/model_weights.h"
#include "checkpoint/reader.h"
#include "data/tokenizer/tokenizer.h"
#include "model/model_config.h"
#include "sharding/unit_storage.h"

namespace baleen {

class ModelFolder {
 public:
  // Of a run that goes on and removes the newest checkpoint while it is opened, the newest is looked for again. Once open, it can be read
  // although it is removed. Throws Error(bad_data) where the folder holds no model, saying what it looked for.
  explicit ModelFolder(const std::filesystem::path& folder);

  const std::filesystem::path& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  // nullptr where the model carries none, or none that is read: then a warning says why. Loaded when it is first asked for.
  const std::shared_ptr<const Tokenizer>& tokenizer();
  // The same; throws Error(bad_data) saying why there is none.
  const Tokenizer& required_tokenizer();
  void load_weights(UnitStorage& units);

  // One of the two is there.
  checkpoint::CheckpointReader* checkpoint() { return reader_ ? &*reader_ : nullptr; }
  const checkpoint::ModelWeights* weights() const { return weights_ ? &*weights_ : nullptr; }

 private:
  void open_checkpoint(const std::filesystem::path& directory);

  std::filesystem::path directory_;
  std::optional<checkpoint::CheckpointReader> reader_;
  std::optional<checkpoint::ModelWeights> weights_;
  ModelConfig config_;
  std::string tokenizer_json_;  // a checkpoint's
  bool tokenizer_loaded_ = false;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<Error> why_no_tokenizer_;
};

}  // namespace baleen
