// Saving a checkpoint so that a crash at any moment leaves the old set of checkpoints or the new one:
//
//   rank 0        begin_checkpoint      makes RUN/checkpoints/step_N.incomplete
//   (barrier)
//   every rank    write_rank_files      its own pieces to its own files, each synced to the disk
//   (gather of the records to rank 0: serialise_records, parse_records)
//   rank 0        commit_checkpoint     manifest.json last, then one rename
//   rank 0        prune_checkpoints     when the new one is safe
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"

namespace baleen::checkpoint {

// Cleans up after interrupted saves and creates the folder to write into, which it returns. `expected_bytes` is what all ranks together
// will write; throws Error(bad_data) naming the path when the disk has no room for it or cannot be written.
std::filesystem::path begin_checkpoint(const std::filesystem::path& run, std::int64_t step, std::uint64_t expected_bytes);

// Writes this rank's weights to model_RANK-of-WORLD.safetensors and its moments to optimizer_RANK-of-WORLD.safetensors (a file that would
// hold nothing is not written). Data go straight from the pieces' memory to the file. On failure throws Error(bad_data) naming the path,
// with this rank's files removed again; the same as Error(rank_failed) when `stop` is asked for.
std::vector<FileRecord> write_rank_files(const std::filesystem::path& incomplete, int rank, int world, std::int64_t step,
                                         std::span<const Piece> pieces, const std::stop_token& stop = {});

// `records` are those of all ranks, `training` the JSON text of an object. Throws Error(bad_data) when a file is not there with its size
// (ranks on machines without a common file system), and leaves the former checkpoints alone whatever fails.
// Returns the checkpoint's folder.
std::filesystem::path commit_checkpoint(const std::filesystem::path& incomplete, std::int64_t step, int world, const std::string& training,
                                        std::vector<FileRecord> records);

// Throws Error(bad_data) unless the file system of `directory` has `bytes` free for this user.
void require_free_space(const std::filesystem::path& directory, std::uint64_t bytes);

}  // namespace baleen::checkpoint
