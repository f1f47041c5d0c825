// Ranks that a launcher started on several machines read their configuration and data each for themselves: a forgotten edit, or a stale
// copy of a file, would otherwise train part of the model in another way without a word.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "train/config.h"
#include "train/run_data.h"

namespace baleen {

// Compares the resolved configuration (without threads and the places of files, which may suit a machine), the run's folder, --resume and
// the fingerprints of the data with rank 0's. Collective. Throws Error(bad_config) on every rank, naming the first key or file that differs
// on those that do.
void require_agreement(World& world, const Config& config, const RunData& data, const std::string& run, const std::string& resume);

}  // namespace baleen
