#include "train/model_folder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "data/tokenizer/tokenizer_folder.h"
#include "train/initial_weights.h"
#include "train/training_checkpoint.h"

namespace baleen {
namespace {

// A run's or checkpoint's directory to read from; nothing where the folder is neither.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / checkpoint::manifest_file_name)) return folder;
  if (!std::filesystem::is_directory(folder / "checkpoints")) return std::nullopt;
  const checkpoint::LatestCheckpoint latest = checkpoint::latest_checkpoint(folder);
  for (const std::string& warning : latest.warnings) log::warning("{}", warning);
  if (latest.checkpoint) return latest.checkpoint->directory;
  if (!latest.warnings.empty())
    throw Error(ExitCode::bad_data,
                latest.warnings.size() == 1 ? "the run has one checkpoint, and it is damaged"
                                            : fmt::format("the run has {} checkpoints, and none of them is whole", latest.warnings.size()),
                folder.string(), "see what is wrong with each: baleen checkpoint verify " + folder.string());
  throw Error(ExitCode::bad_data, "the run has no checkpoint yet", folder.string(), "train it to its first checkpoint");
}

}  // namespace

ModelFolder::ModelFolder(const std::filesystem::path& folder) : directory_(folder) {
  for (int attempt = 1;; ++attempt) {
    const auto checkpoint = find_checkpoint(folder);
    if (!checkpoint) break;
    try {
      open_checkpoint(*checkpoint);
      return;
    } catch (const Error&) {
      if (attempt == checkpoint::removal_tries || *checkpoint == folder || !checkpoint::is_removed(*checkpoint)) throw;
    }
  }
  if (!std::filesystem::exists(folder / "config.json")) {
    const bool exists = std::filesystem::exists(folder);
    throw Error(ExitCode::bad_data,
                exists
                    ? "no model here: neither a run (checkpoints/) nor a checkpoint (manifest.json) nor a Hugging Face folder (config.json)"
                    : "no such folder",
                folder.string(), "give a run directory of `baleen train`, one of its checkpoints, or the folder of a model");
  }
  config_ = read_model_config(folder / "config.json");
  weights_.emplace(open_model_weights(folder, config_));
}

void ModelFolder::open_checkpoint(const std::filesystem::path& directory) {
  directory_ = directory;
  reader_.emplace(directory);
  reader_->open_files(checkpoint::StateKind::weight);
  const std::string where = directory.string();
  const TrainingState state = TrainingState::from_json(reader_->training(), where);
  if (state.model_config.empty()) throw Error(ExitCode::bad_data, "the checkpoint does not say its model", where, "use another checkpoint");
  config_ = parse_model_config(state.model_config, where);
  tokenizer_json_ = state.tokenizer;
}

const std::shared_ptr<const Tokenizer>& ModelFolder::tokenizer() {
  if (std::exchange(tokenizer_loaded_, true)) return tokenizer_;
  if (reader_) {
    if (!tokenizer_json_.empty()) tokenizer_ = tokenizer_from_json(tokenizer_json_, directory_.string());
    return tokenizer_;
  }
  try {
    tokenizer_ = load_folder_tokenizer(directory_);
  } catch (const Error& error) {  // the weights are of use without it
    why_no_tokenizer_ = error;
    log::warning("no tokenizer: {} ({})", error.what_is_wrong(), error.where());
  }
  return tokenizer_;
}

const Tokenizer& ModelFolder::required_tokenizer() {
  if (tokenizer() == nullptr)
    throw Error(ExitCode::bad_data,
                "the model carries no tokenizer" + (why_no_tokenizer_ ? ": " + why_no_tokenizer_->what_is_wrong() : std::string()),
                why_no_tokenizer_ ? why_no_tokenizer_->where() : directory_.string(),
                why_no_tokenizer_ ? why_no_tokenizer_->remedy() : "train on files made by `baleen tokenize`, or set data.tokenizer");
  return *tokenizer_;
}

void ModelFolder::load_weights(UnitStorage& units) {
  if (reader_)
    load_checkpoint(*reader_, units, /*with_moments=*/false);
  else
    load_model_weights(*weights_, units);
}

}  // namespace baleen
