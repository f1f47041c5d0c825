// The folder of checkpoints: RUN/checkpoints/step_00000100. Its names are the protocol, since a name is the only thing a rename changes:
//   step_N               a complete checkpoint
//   step_N.incomplete    being written, or left by a save that was killed; never read
//   step_N.replaced      the former step_N, in the instant between two renames on a file system that cannot exchange two names
//   step_N.damaged       was a checkpoint that turned out to be broken when a run wanted to go on from it; kept for a person, never read
//   .removing_step_N     being deleted; never read
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::checkpoint {

struct CheckpointEntry {
  std::int64_t step = 0;
  std::filesystem::path directory;
};

std::filesystem::path checkpoints_folder(const std::filesystem::path& run);
// "step_00000100", and the step of such a name.
std::string step_name(std::int64_t step);
std::optional<std::int64_t> step_of_name(std::string_view name);

// The checkpoints of a run by ascending step, taken by their names alone. Empty when there is no such folder.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& run);

// Where the checkpoint of `step` is: at step_N, or at what stands in for it (step_N.replaced); step_N where there is neither.
std::filesystem::path find_checkpoint(const std::filesystem::path& run, std::int64_t step);

// The checkpoint's folder or a file in it that this user may not read, which is no damage.
std::optional<std::filesystem::path> forbidden_file(const std::filesystem::path& checkpoint);

// Whether the directory has gone from its name since it was listed: a run that goes on deletes its checkpoints (keep) while others read
// them. What a reader says of such a one is no damage.
bool is_removed(const std::filesystem::path& directory);
// How often a reader looks for another checkpoint in place of one that the run has removed.
inline constexpr int removal_tries = 20;

// Takes the name step_N.damaged, or step_N.damaged-2 and so on where there is one, so that the checkpoint is neither read nor counted
// again.
void set_aside_damaged(const CheckpointEntry& checkpoint);

struct LatestCheckpoint {
  std::optional<CheckpointEntry> checkpoint;
  std::vector<std::string> warnings;  // one for each newer checkpoint that is broken, with the reason
};
// The newest one whose manifest is sound and whose files are there with their sizes (their bytes are checked when they are read). One that
// is removed meanwhile is passed over without a warning, and where nothing is left it looks again.
LatestCheckpoint latest_checkpoint(const std::filesystem::path& run);

// Deletes all but the newest `keep` (at least 1). A kill in between leaves each either as it was or gone to readers.
void prune_checkpoints(const std::filesystem::path& run, int keep);
// Deletes the checkpoints after `step`: those of a future that a run resumed from an earlier step has given up.
void discard_checkpoints_after(const std::filesystem::path& run, std::int64_t step);

// Deletes what interrupted saves left, and finishes what they had begun. Call while no save is under way.
void clean_checkpoints_folder(const std::filesystem::path& run);

enum class Exchange { where_possible, never };
// Gives `step_N.incomplete` its final name, in place of a complete step_N if there is one. At every moment step_N or step_N.replaced
// is complete. `exchange` is for tests: never takes the way of file systems without an atomic exchange.
void publish_checkpoint(const std::filesystem::path& incomplete, Exchange exchange = Exchange::where_possible);

}  // namespace baleen::checkpoint
