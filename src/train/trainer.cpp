#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/directory.h"
#include "ops/threads.h"
#include "sharding/replica_check.h"
#include "train/evaluation.h"
#include "train/export_model.h"
#include "train/initial_weights.h"
#include "train/layout.h"
#include "train/memory_fit.h"
#include "train/peak.h"

namespace baleen {
ResumePolicy parse_resume(const std::string& text) {
  if (text == "auto") return {};
  if (text == "never") return {ResumePolicy::Kind::never, 0};
  ResumePolicy policy{ResumePolicy::Kind::step, 0};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), policy.step);
  if (error != std::errc() || end != text.data() + text.size() || policy.step < 0)
    throw Error(ExitCode::bad_config, fmt::format("'{}' is neither auto, never nor a step", text), "--resume", "for example --resume 100");
  return policy;
}

Trainer::Trainer(Config config, RunData data, World& world, std::filesystem::path run, ResumePolicy resume, std::function<bool()> stop,
                 std::filesystem::path trace)
    : config_(std::move(config)),
      data_(std::move(data)),
      world_(world),
      run_(std::move(run)),
      resume_(resume),
      stop_(std::move(stop)),
      trace_file_(std::move(trace)),
      device_(create_training_device(config_, world)),
      axes_(world, layout_of(config_.parallelism), config_.model, device_.get(), trace_file_.empty() ? nullptr : &trace_),
      engine_(check_memory(training_engine_options(config_, device_), axes_.groups()), axes_.groups()),
      optimizer_(config_.adamw, engine_.device(), engine_.units()) {
  if (!trace_file_.empty()) engine_.observe(&trace_);
  prepare_run_directory();
  if (data_.train != nullptr)
    training_step_.emplace(engine_, optimizer_, *data_.train, config_.schedule(), config_.training.gradient_clip);
  restore();
}

void Trainer::prepare_run_directory() {
  const std::uint64_t bytes = checkpoint_bytes(engine_.group(), engine_.units());
  if (world_.rank() == 0) {
    lock_ = std::make_unique<checkpoint::RunDirectoryLock>(run_);
    checkpoint::probe_writable(run_, bytes);
    log::add_file((run_ / "log.txt").string());
  }
  axes_.everyone().barrier().wait();
  if (world_.rank() != 0) log::add_file((run_ / "log.txt").string());
}

void Trainer::restore() {
  // Rank 0 looks, all follow, so that no rank can see another set of checkpoints than the others.
  std::int64_t step = -1;
  if (world_.rank() == 0 && resume_.kind == ResumePolicy::Kind::automatic) {
    const checkpoint::LatestCheckpoint latest = checkpoint::latest_checkpoint(run_);
    for (const std::string& warning : latest.warnings) log::warning("{}", warning);
    if (latest.checkpoint) step = latest.checkpoint->step;
  }
  axes_.everyone().broadcast(&step, sizeof step, DType::u8, 0).wait();
  if (resume_.kind == ResumePolicy::Kind::step) step = resume_.step;
  if (step >= 0) restore_from(checkpoint::checkpoints_folder(run_) / checkpoint::step_name(step));
  if (step < 0) set_initial_weights(config_, engine_.units());
  axes_.everyone().barrier().wait();  // everybody has read before anything is deleted
  if (world_.rank() != 0) return;
  if (resume_.kind != ResumePolicy::Kind::automatic) checkpoint::discard_checkpoints_after(run_, step);
  write_file_atomically(run_ / "config.toml", config_toml(config_));
  metrics_ = std::make_unique<MetricsLog>(run_ / "metrics.jsonl", start_step_);
  if (config_.metrics.tensorboard) events_ = std::make_unique<EventLog>(run_ / "events", start_step_);
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
  load_checkpoint(reader, engine_.units(), /*with_moments=*/true);
  if (data_.train != nullptr && !state.data_fingerprint.empty())
    check_same_data(DataFingerprint::from_json(state.data_fingerprint, directory.string()), data_.train->fingerprint());
  start_step_ = saved_step_ = state.step;
  tokens_ = state.tokens;
  if (world_.rank() == 0) log::info("resumed from {}", directory.string());
}

void Trainer::log_start() const {
  if (world_.rank() != 0) return;
  const TrainingConfig& t = config_.training;
  log::info("model: {} of {:.3f} M parameters, vocabulary {}", config_.model.architecture, static_cast<double>(config_.model.parameters()) / 1e6,
            config_.model.vocab_size);
  log::info("layout: {} ranks of {} threads, {}, backend {}; {}", world_.size(), ops::threads(),
            layout_of(config_.parallelism).text(), world_.backend(), engine_.device().description());
  if (world_.size() > 1) log::info("{}", rank_grid(axes_.mesh()));
  log::info("batch: {} sequences of {} tokens a step, micro-batches of {}; steps {} to {}; run directory {}", t.global_batch_size, t.sequence_length,
            t.micro_batch_size, start_step_ + 1, t.steps, run_.string());
}

ExitCode Trainer::run() {
  const std::int64_t steps = config_.training.steps;
  if (start_step_ >= steps && saved_step_ >= 0) {
    if (world_.rank() == 0) log::info("the run is finished: step {} of {}", start_step_, steps);
    if (!std::filesystem::exists(run_ / "export")) export_if_wanted();
    return ExitCode::done;
  }
  log_start();
  progress_.emplace(start_step_ + 1, steps, world_.rank() == 0);
  for (std::int64_t step = start_step_ + 1; step <= steps; ++step) {
    const bool traced = !trace_file_.empty() && step == std::min(start_step_ + 2, steps);
    if (traced) {
      axes_.everyone().barrier().wait();
      trace_.start();
    }
    const bool trained = train_step(step);
    if (traced) write_trace(step);
    if (!trained) {
      finish_steps(0);
      if (saved_step_ != step - 1) save(step - 1);
      if (world_.rank() == 0) log::info("stopped by a signal after step {}; the checkpoint is saved: run the same command again to go on", step - 1);
      return ExitCode::stopped;
    }
    const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    const bool evaluate = due(config_.training.eval_every) || (config_.training.eval_every > 0 && step == steps);
    if (evaluate || due(config_.fault.replica_check_every) || due(config_.checkpoint.every) || step == steps) finish_steps(0);
    if (evaluate) validate(step);
    if (due(config_.fault.replica_check_every)) check_replicas();
    if (due(config_.checkpoint.every)) save(step);
  }
  if (saved_step_ != steps) save(steps);
  export_if_wanted();
  return ExitCode::done;
}

void Trainer::write_trace(std::int64_t step) {
  engine_.settle_weights();
  trace_.stop();
  trace_.write(axes_.everyone(), trace_file_);
  if (world_.rank() == 0) log::info("the trace of step {} is in {}", step, trace_file_.string());
}

void Trainer::export_if_wanted() {
  if (!config_.checkpoint.export_hf || world_.rank() != 0) return;
  std::filesystem::remove_all(run_ / "export");  // of fewer steps
  export_model(run_, run_ / "export");
  log::info("exported to {}", (run_ / "export").string());
}

template <class Row>
void Trainer::record(const Row& row) {
  metrics_->append(row);
  if (events_ != nullptr) events_->append(row);
}

bool Trainer::train_step(std::int64_t step) {
  MetricsRow row;
  const std::uint64_t bytes = axes_.bytes_sent(), busy = axes_.busy_nanoseconds(), exposed = engine_.exposed_nanoseconds();
  if (!training_step_->enqueue(step, stop_())) return false;
  row.step = step;
  row.lr = config_.schedule().at(step);
  row.comm_bytes = axes_.bytes_sent() - bytes;
  row.comm_ms = static_cast<double>(axes_.busy_nanoseconds() - busy) / 1e6;
  row.bubble_fraction = engine_.bubble_fraction();
  row.comm_exposed_ms = static_cast<double>(engine_.exposed_nanoseconds() - exposed) / 1e6;
  begun_.push_back(row);
  finish_steps(training_step_->results_late());
  return true;
}

void Trainer::finish_steps(int leave) {
  while (training_step_->pending() > leave) {
    MetricsRow row = begun_.front();
    begun_.pop_front();
    StepResult result;
    try {
      result = training_step_->take();
    } catch (const Error& error) {
      // The row of a step whose numbers went bad is part of the record.
      if (error.code() == ExitCode::bad_numbers && metrics_ != nullptr) {
        MetricsRow bad;
        bad.step = row.step;
        bad.loss = bad.grad_norm = std::numeric_limits<double>::quiet_NaN();
        bad.lr = row.lr;
        bad.tokens = tokens_;
        record(bad);
      }
      throw;
    }
    finish_step(result, row);
  }
}

void Trainer::finish_step(const StepResult& result, MetricsRow row) {
  const std::int64_t step_tokens = config_.training.global_batch_size * config_.training.sequence_length;
  tokens_ += step_tokens;
  if (metrics_ == nullptr) return;
  row.loss = result.loss;
  row.grad_norm = result.grad_norm;
  row.tokens = tokens_;
  row.step_ms = 1e3 * result.seconds;
  row.tokens_per_s = static_cast<double>(step_tokens) / result.seconds;
  row.model_tflops = row.tokens_per_s * config_.model.flops_per_token(config_.training.sequence_length) / world_.size() / 1e12;
  row.mfu = model_flops_utilisation(row.model_tflops, engine_.device().description(), engine_.units().options().compute);
  row.memory_peak_bytes = engine_.device().peak_bytes();
  if (row.step % config_.metrics.every == 0 || row.step == config_.training.steps) record(row);
  progress_->show(row);
}

void Trainer::validate(std::int64_t step) {
  if (data_.validation == nullptr) return;
  const std::int64_t wanted = config_.training.eval_steps * config_.training.global_batch_size;
  const EvaluationResult result = evaluate(engine_, *data_.validation, std::min<std::int64_t>(wanted, static_cast<std::int64_t>(data_.validation->samples())));
  if (metrics_ == nullptr) return;
  const ValidationRow row{step, result.loss, result.loss / std::numbers::ln2 / data_.validation_bytes_per_token};
  record(row);
  progress_->show(row);
}

void Trainer::check_replicas() {
  engine_.settle_weights();
  const DataGroup& group = engine_.group();
  if (engine_.units().keeps_whole_weights()) baleen::check_replicas(group.batch, engine_.units());
  else if (group.replicas != nullptr) baleen::check_replicas(*group.replicas, engine_.units());
}

void Trainer::save(std::int64_t step) {
  engine_.settle_weights();
  TrainingState state;
  state.step = step;
  state.tokens = tokens_;
  state.model_config = model_config_json(config_.model);
  state.tokenizer = data_.tokenizer_json;
  if (data_.train != nullptr) state.data_fingerprint = data_.train->fingerprint().to_json();
  save_checkpoint(run_, state, engine_.group(), engine_.units(), config_.checkpoint.keep);
  saved_step_ = step;
}

}  // namespace baleen
