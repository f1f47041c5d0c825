// Saves checkpoints while training goes on: training pauses for a copy of this rank's states in memory, and a thread writes the copy.
//
//   every rank   begin     rank 0 makes step_N.incomplete; copies; the thread computes checksums and writes and syncs this rank's files
//   every rank   tell, hear   at each step the ranks say with the votes of the step whether their files are written
//   rank 0       once all are: collects the records, and its thread writes manifest.json, renames and prunes
//
// So nothing waits for a disk but the threads, and no rank waits for another's disk longer than it takes to say "not yet".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "sharding/data_group.h"
#include "sharding/unit_storage.h"
#include "train/training_checkpoint.h"

namespace baleen {

// Bytes that the checkpoint takes on the disk, headers aside. Collective.
std::uint64_t checkpoint_bytes(const DataGroup& group, const UnitStorage& units);

class CheckpointSaver {
 public:
  // Collective. `device` holds what `units` hold; where it is nullptr, or where a rank has no memory for the copy (then with a warning),
  // begin() returns when the checkpoint is complete.
  CheckpointSaver(std::filesystem::path run, std::int64_t keep, const DataGroup& group, const UnitStorage& units, Device* device);
  // Gives up a save under way: what it has written is left as .incomplete.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Saves the slices that the ranks of the group own as RUN/checkpoints/step_N, then deletes all but the newest `keep`. Collective; waits
  // for a save that is still under way first. Work on the device that writes states must be done. Throws Error on all ranks when one fails
  // (no space): former checkpoints stay.
  void begin(const TrainingState& state);

  // What this rank says in each step's votes, and what the sums of all ranks mean. hear() throws on all ranks when the save under way has
  // failed on one of them.
  struct Votes {
    double unwritten = 0, failed = 0;
  };
  Votes tell() const;
  void hear(const Votes& all);

  // Waits for the save under way, if there is one, until it is complete. Collective. Throws as hear() does.
  void finish();

  struct Times {
    double paused = 0;  // seconds that begin() took, and of those in the copy
    double copying = 0;
    double writing = 0;       // seconds that this rank's files took, checksums and sync included
    std::uint64_t bytes = 0;  // of this rank
  };
  // Of the latest save that is complete.
  const Times& times() const;
  bool background() const;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

// One save in the foreground.
void save_checkpoint(const std::filesystem::path& run, const TrainingState& state, const DataGroup& group, const UnitStorage& units,
                     std::int64_t keep);

}  // namespace baleen
