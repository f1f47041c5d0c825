// Verifying all checkpoints of a run, also of one that goes on and deletes them meanwhile.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"

namespace baleen::checkpoint {

struct Verification {
  CheckpointEntry checkpoint;
  bool removed = false;               // by the run, while it was read: nothing is known of it
  std::vector<std::string> problems;  // one line each; empty where every byte is right
};

// Reads every byte of every checkpoint, by ascending step, and calls `report` after each. Where all of them were removed meanwhile, it goes
// on with those that have come since. Throws Error(bad_data) when there are none, or each that it tried was removed.
void verify_checkpoints(const std::filesystem::path& run, const std::function<void(const Verification&)>& report);

}  // namespace baleen::checkpoint
