// baleen checkpoint list | verify | reshard
#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/reader.h"
#include "checkpoint/verification.h"
#include "cli/commands.h"
#include "train/reshard.h"

namespace baleen::cli {
namespace {

std::vector<checkpoint::CheckpointEntry> checkpoints_of(const std::string& run) {
  const auto entries = checkpoint::list_checkpoints(run);
  if (entries.empty()) throw Error(ExitCode::bad_data, "no checkpoints here", run, "give a run directory of `baleen train`");
  return entries;
}

int list(const std::string& run) {
  int broken = 0;
  for (const checkpoint::CheckpointEntry& entry : checkpoints_of(run)) {
    try {
      const checkpoint::CheckpointReader reader(entry.directory);
      std::uint64_t bytes = 0;
      for (const auto& file : reader.manifest().files) bytes += file.bytes;
      fmt::print("step {:>8}  {:>14} bytes  written by {} ranks  {}\n", entry.step, bytes, reader.manifest().world,
                 entry.directory.string());
    } catch (const Error& error) {
      if (checkpoint::is_removed(entry.directory)) continue;  // by a run that goes on
      fmt::print("step {:>8}  BROKEN: {}  {}\n", entry.step, error.what_is_wrong(), error.where());
      ++broken;
    }
  }
  return broken == 0 ? 0 : static_cast<int>(ExitCode::bad_data);
}

int verify(const std::string& run) {
  int broken = 0;
  checkpoint::verify_checkpoints(run, [&](const checkpoint::Verification& result) {
    const char* const verdict = result.removed            ? "removed by the run while it was read"
                                : result.problems.empty() ? "every byte is right"
                                                          : "DAMAGED";
    fmt::print("step {:>8}  {}\n", result.checkpoint.step, verdict);
    if (result.removed || result.problems.empty()) return;
    for (const std::string& problem : result.problems) fmt::print("    {}\n", problem);
    ++broken;
  });
  return broken == 0 ? 0 : static_cast<int>(ExitCode::bad_data);
}

}  // namespace

int run(const CheckpointArguments& arguments) {
  switch (arguments.action) {
    case CheckpointArguments::Action::list: return list(arguments.run);
    case CheckpointArguments::Action::verify: return verify(arguments.run);
    case CheckpointArguments::Action::reshard:
      fmt::print("step {} now has the shards of {} ranks\n", reshard_checkpoint(arguments.run, arguments.step, arguments.ranks),
                 arguments.ranks);
      return 0;
  }
  return 0;
}

}  // namespace baleen::cli
