#include "checkpoint/verification.h"

#include "base/error.h"
#include "checkpoint/reader.h"

namespace baleen::checkpoint {
namespace {

Verification verify(const CheckpointEntry& entry) {
  Verification result;
  result.checkpoint = entry;
  try {
    result.problems = CheckpointReader(entry.directory).verify();
  } catch (const Error& error) {
    result.problems.push_back(error.what_is_wrong() + "  " + error.where());
  }
  result.removed = !result.problems.empty() && is_removed(entry.directory);
  return result;
}

}  // namespace

void verify_checkpoints(const std::filesystem::path& run, const std::function<void(const Verification&)>& report) {
  std::int64_t last = -1;
  bool verified = false;
  for (int attempt = 0; attempt < removal_tries && !verified; ++attempt)
    for (const CheckpointEntry& entry : list_checkpoints(run)) {
      if (entry.step <= last) continue;
      last = entry.step;
      const Verification result = verify(entry);
      verified = verified || !result.removed;
      report(result);
    }
  if (last < 0) throw Error(ExitCode::bad_data, "no checkpoints here", run.string(), "give a run directory of `baleen train`");
  if (!verified)
    throw Error(ExitCode::bad_data, "the run removed each checkpoint while it was read, so that none is verified", run.string(),
                "raise [checkpoint] keep, or verify when the run has ended");
}

}  // namespace baleen::checkpoint
