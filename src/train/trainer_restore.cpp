// How a trainer begins: from a checkpoint, or with initial weights.
#include <fmt/format.h>

#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/directory.h"
#include "train/initial_weights.h"
#include "train/trainer.h"

namespace baleen {
namespace {

// A sound checkpoint of a run that this one would not go on with.
class AnotherRun : public Error {
 public:
  explicit AnotherRun(const Error& error) : Error(error) {}
};

}  // namespace

ResumePolicy parse_resume(const std::string& text) {
  if (text == "auto") return {};
  if (text == "never") return {ResumePolicy::Kind::never, 0};
  ResumePolicy policy{ResumePolicy::Kind::step, 0};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), policy.step);
  if (error != std::errc() || end != text.data() + text.size() || policy.step < 0)
    throw Error(ExitCode::bad_config, fmt::format("'{}' is neither auto, never nor a step", text), "--resume", "for example --resume 100");
  return policy;
}

void Trainer::restore() {
  if (resume_.kind != ResumePolicy::Kind::automatic && begun_before()) resume_.kind = ResumePolicy::Kind::automatic;
  std::int64_t step = -1;
  if (resume_.kind == ResumePolicy::Kind::automatic) step = restore_newest();
  if (resume_.kind == ResumePolicy::Kind::step) {
    step = resume_.step;
    restore_from(checkpoint::find_checkpoint(run_, step));
  }
  if (step < 0) set_initial_weights(config_, engine_.units());
  axes_.everyone().barrier().wait();  // everybody has read before anything is deleted
  if (world_.rank() != 0) return;
  if (step < 0 && !begins_with_weights(config_)) log::info("random weights, seed {}", config_.training.seed);
  if (step >= 0) log::info("resumed from step {} in {}", step, checkpoint::checkpoints_folder(run_).string());
  if (resume_.kind != ResumePolicy::Kind::automatic) checkpoint::discard_checkpoints_after(run_, step);
  write_file_atomically(run_ / "config.toml", config_toml(config_));
  if (!resume_.job.empty()) write_file_atomically(run_ / ".job", resume_.job);
  open_records();
}

bool Trainer::begun_before() const {
  std::int32_t begun = 0;
  // torchrun gives every life of its ranks another name.
  if (world_.rank() == 0 && resume_.restarts > 0) {
    const std::filesystem::path file = run_ / ".job";
    begun = resume_.job.ends_with("|") || (std::filesystem::exists(file) && read_file(file, 4096) == resume_.job) ? 1 : 0;
  }
  axes_.everyone().broadcast(&begun, sizeof begun, DType::u8, 0).wait();
  return begun != 0;
}

std::int64_t Trainer::restore_newest() {
  Communicator& everyone = axes_.everyone();
  std::vector<checkpoint::CheckpointEntry> found;  // of rank 0: it looks, all follow, so that nobody can see another set than the others
  if (everyone.rank() == 0) found = checkpoint::list_checkpoints(run_);
  std::optional<Error> first;  // of the newest: where none can be read, that is what to say
  for (auto entry = found.rbegin();;) {
    std::int64_t step = entry != found.rend() ? entry->step : -1;
    everyone.broadcast(&step, sizeof step, DType::u8, 0).wait();
    if (step < 0) {
      if (first) throw *first;
      return -1;
    }
    const auto directory = checkpoint::find_checkpoint(run_, step);
    std::optional<Error> failure;
    try {
      restore_from(directory);
      if (start_step_ != step) throw Error(ExitCode::bad_data, fmt::format("its manifest says step {}", start_step_), directory.string());
    } catch (const AnotherRun&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != ExitCode::bad_data) throw;
      if (const auto file = checkpoint::forbidden_file(directory))
        throw Error(ExitCode::bad_data, "a checkpoint that this user may not read", file->string(), "see to its permissions");
      failure = error;
    }
    std::int32_t failed = failure ? 1 : 0;
    everyone.all_reduce(&failed, &failed, 1, DType::i32, ReduceOp::max).wait();
    if (failed == 0) {
      if (everyone.rank() == 0)
        for (auto damaged = found.rbegin(); damaged != entry; ++damaged) checkpoint::set_aside_damaged(*damaged);
      return step;
    }
    if (failure) log::warning("checkpoint {} cannot be used and is passed over: {}", directory.string(), failure->what());
    if (!first)
      first = failure ? *failure
                      : Error(ExitCode::rank_failed, "another rank could not read the checkpoint", directory.string(),
                              "see that rank's message");
    if (everyone.rank() == 0) ++entry;
  }
}

void Trainer::restore_from(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory)) {
    std::string steps;
    for (const auto& entry : checkpoint::list_checkpoints(run_)) steps += fmt::format("{}{}", steps.empty() ? "" : ", ", entry.step);
    throw Error(ExitCode::bad_data, "no such checkpoint", directory.string(),
                steps.empty() ? "this run has no checkpoints; use --resume auto or never" : "this run has checkpoints of steps " + steps);
  }
  checkpoint::CheckpointReader reader(directory);
  const TrainingState state = TrainingState::from_json(reader.training(), directory.string());
  std::optional<ModelConfig> model;
  if (!state.model_config.empty()) model = parse_model_config(state.model_config, directory.string());
  std::optional<DataFingerprint> data;
  if (data_.train != nullptr && !state.data_fingerprint.empty())
    data = DataFingerprint::from_json(state.data_fingerprint, directory.string());
  try {
    if (model) check_same_function(*model, config_.model);
    if (data) check_same_data(*data, data_.train->fingerprint());
  } catch (const Error& error) {
    throw AnotherRun(error);
  }
  load_checkpoint(reader, engine_.units(), /*with_moments=*/true);
  start_step_ = saved_step_ = state.step;
  tokens_ = state.tokens;
  skipped_batches_ = state.skipped_batches;
  losses_.assign(state.losses.begin(), state.losses.end());
  while (static_cast<std::int64_t>(losses_.size()) > config_.fault.spike_window) losses_.pop_front();
  rewinds_ = state.rewinds;
  skipped_in_a_row_ = state.skipped_in_a_row;
  if (training_step_) training_step_->skip_batches(skipped_batches_);
}

}  // namespace baleen
