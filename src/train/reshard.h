// Rewrites a checkpoint as another number of ranks would have written it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace baleen {

// Replaces the checkpoint of `step` (the latest where it is negative) in RUN by one of `ranks` shards; elements, their precision and the
// training state stay.
// Holds one shard in memory at a time. A crash leaves the old checkpoint or the new one. The run must not be in use. Returns the step.
// Throws Error(bad_data) where there is no such checkpoint or it is damaged.
std::int64_t reshard_checkpoint(const std::filesystem::path& run, std::int64_t step, int ranks);

}  // namespace baleen
