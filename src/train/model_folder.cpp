#include "train/model_folder.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "train/training_checkpoint.h"

namespace baleen {
namespace {

std::filesystem::path find_checkpoint(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / checkpoint::manifest_file_name)) return folder;
  if (std::filesystem::is_directory(folder / "checkpoints")) {
    const checkpoint::LatestCheckpoint latest = checkpoint::latest_checkpoint(folder);
    for (const std::string& warning : latest.warnings) log::warning("{}", warning);
    if (latest.checkpoint) return latest.checkpoint->directory;
    throw Error(ExitCode::bad_data, "the run has no usable checkpoint yet", folder.string(), "train it to its first checkpoint");
  }
  const bool exists = std::filesystem::exists(folder);
  throw Error(ExitCode::bad_data, exists ? "no model here: neither a run (checkpoints/) nor a checkpoint (manifest.json)" : "no such folder", folder.string(),
              "give a run directory of `baleen train` or one of its checkpoints");
}

}  // namespace

ModelFolder::ModelFolder(const std::filesystem::path& folder) {
  reader_.emplace(find_checkpoint(folder));
  const std::string where = reader_->directory().string();
  const TrainingState state = TrainingState::from_json(reader_->training(), where);
  if (state.model_config.empty()) throw Error(ExitCode::bad_data, "the checkpoint does not say its model", where, "use another checkpoint");
  config_ = parse_model_config(state.model_config, where);
  if (!state.tokenizer.empty()) tokenizer_ = tokenizer_from_json(state.tokenizer, where);
}

void ModelFolder::load_weights(UnitStorage& units) { load_checkpoint(*reader_, units, /*with_moments=*/false); }

}  // namespace baleen
