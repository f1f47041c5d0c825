// The trainer's side of a checkpoint: which pieces a rank writes, and the state beside the tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "sharding/data_group.h"
#include "sharding/unit_storage.h"

namespace baleen {

// What a checkpoint says besides its tensors: enough to go on, and enough to generate without the run's folder.
struct TrainingState {
  std::int64_t step = 0;
  std::int64_t tokens = 0;       // trained on so far
  std::string model_config;      // config.json's text
  std::string tokenizer;         // Tokenizer::to_json(), or "" where the data name none
  std::string data_fingerprint;  // DataFingerprint::to_json(), or "" before any data

  std::string to_json() const;
  static TrainingState from_json(const std::string& text, const std::string& where);
};

// Saves the slices that the ranks of the group own as RUN/checkpoints/step_N, then deletes all but the newest `keep`. Collective.
// A failure on one rank (disk full) fails the save on all; former checkpoints stay.
void save_checkpoint(const std::filesystem::path& run, const TrainingState& state, const DataGroup& group, const UnitStorage& units,
                     std::int64_t keep);

// Bytes that the checkpoint takes on the disk, headers aside. Collective.
std::uint64_t checkpoint_bytes(const DataGroup& group, const UnitStorage& units);

// Where a range of what a rank holds of a parameter lies in the whole; elements count in what it holds.
checkpoint::Placement placement_of(const ParameterDescription& parameter, checkpoint::StateKind kind, SliceRange range);

// Fills what this rank keeps of the weights and, in a training storage, of the moments, whatever layout, stage or precision wrote them.
// Throws Error(bad_data) naming what is missing, damaged or of another shape.
void load_checkpoint(checkpoint::CheckpointReader& reader, UnitStorage& units, bool with_moments);

}  // namespace baleen
