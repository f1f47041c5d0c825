// What a checkpoint says of the training beside its tensors, and how a rank fills its memory from one. checkpoint_saver.h writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "sharding/unit_storage.h"

namespace baleen {

// What a checkpoint says besides its tensors: enough to go on, and enough to generate without the run's folder.
struct TrainingState {
  std::int64_t step = 0;
  std::int64_t tokens = 0;           // trained on so far
  std::int64_t skipped_batches = 0;  // step s read batch s - 1 + this many: what a spike of the loss has cost
  // What spikes of the loss are measured against (step and loss, at most fault.spike_window), how often the run went back for one, and
  // how many steps before this one were skipped in a row.
  std::vector<std::pair<std::int64_t, double>> losses;
  std::int64_t rewinds = 0, skipped_in_a_row = 0;
  std::string model_config;      // config.json's text
  std::string tokenizer;         // Tokenizer::to_json(), or "" where the data name none
  std::string data_fingerprint;  // DataFingerprint::to_json(), or "" before any data

  std::string to_json() const;
  static TrainingState from_json(const std::string& text, const std::string& where);
};

// Where a range of what a rank holds of a parameter lies in the whole; elements count in what it holds.
checkpoint::Placement placement_of(const ParameterDescription& parameter, checkpoint::StateKind kind, SliceRange range);

// Fills what this rank keeps of the weights and, in a training storage, of the moments, whatever layout, stage or precision wrote them.
// Throws Error(bad_data) naming what is missing, damaged or of another shape.
void load_checkpoint(checkpoint::CheckpointReader& reader, UnitStorage& units, bool with_moments);

}  // namespace baleen
