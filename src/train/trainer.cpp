#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/directory.h"
#include "ops/threads.h"
#include "sharding/replica_check.h"
#include "train/background.h"
#include "train/evaluation.h"
#include "train/export_model.h"
#include "train/initial_weights.h"
#include "train/layout.h"
#include "train/memory_fit.h"
#include "train/peak.h"

namespace baleen {

Trainer::Trainer(Config config, RunData data, World& world, std::filesystem::path run, ResumePolicy resume, std::function<bool()> stop,
                 std::filesystem::path trace, ProgressReporter reporter)
    : config_(std::move(config)),
      data_(std::move(data)),
      world_(world),
      run_(std::move(run)),
      resume_(std::move(resume)),
      stop_(std::move(stop)),
      trace_file_(std::move(trace)),
      device_(create_training_device(config_, world)),
      axes_(world, layout_of(config_.parallelism), config_.model, device_.get(), trace_file_.empty() ? nullptr : &trace_),
      engine_(check_memory(training_engine_options(config_, device_), axes_.groups()), axes_.groups()),
      optimizer_(config_.adamw, engine_.device(), engine_.units()) {
  watch_.emplace(std::move(reporter), engine_, axes_.groups().place.stage, trace_file_.empty() ? nullptr : &trace_);
  watch_->begin_unlimited("starting");
  prepare_run_directory();
  if (data_.train != nullptr) {
    training_step_.emplace(engine_, optimizer_, *data_.train, config_.schedule(), config_.training.gradient_clip,
                           StepGraphs::where_possible, config_.fault.nonfinite == "skip");
    data_fingerprint_ = data_.train->fingerprint().to_json();
  }
  restore();
  // Of a finished run nothing is left to be written.
  const std::uint64_t bytes = checkpoint_bytes(engine_.group(), engine_.units());
  if (world_.rank() == 0 && (saved_step_ < 0 || start_step_ < config_.training.steps)) checkpoint::probe_writable(run_, bytes);
  // Where only the end is saved nothing could go on meanwhile.
  const bool background = config_.checkpoint.async && config_.checkpoint.every > 0 && config_.training.steps > config_.checkpoint.every;
  saver_.emplace(run_, config_.checkpoint.keep, engine_.group(), engine_.units(), background ? &engine_.device() : nullptr);
}

void Trainer::prepare_run_directory() {
  if (world_.rank() == 0) {
    lock_ = std::make_unique<checkpoint::RunDirectoryLock>(run_);
    log::add_file((run_ / "log.txt").string(), world_.rank(), world_.size());
  }
  axes_.everyone().barrier().wait();
  if (world_.rank() != 0) log::add_file((run_ / "log.txt").string(), world_.rank(), world_.size());
}

void Trainer::open_records() {
  metrics_.reset();
  events_.reset();
  metrics_ = std::make_unique<MetricsLog>(run_ / "metrics.jsonl", start_step_);
  if (config_.metrics.tensorboard) events_ = std::make_unique<EventLog>(run_ / "events", start_step_);
}

void Trainer::log_start() const {
  if (world_.rank() != 0) return;
  const TrainingConfig& t = config_.training;
  log::info("model: {} of {:.3f} M parameters, vocabulary {}", config_.model.architecture,
            static_cast<double>(config_.model.parameters()) / 1e6, config_.model.vocab_size);
  log::info("layout: {} ranks of {} threads, {}, backend {}; {}", world_.size(), ops::threads(), layout_of(config_.parallelism).text(),
            world_.backend(), engine_.device().description());
  if (world_.size() > 1) log::info("{}", rank_grid(axes_.mesh()));
  log::info("batch: {} sequences of {} tokens a step, micro-batches of {}; steps {} to {}; run directory {}", t.global_batch_size,
            t.sequence_length, t.micro_batch_size, start_step_ + 1, t.steps, run_.string());
  if (begins_with_weights(config_) && data_.vocabulary > 0 && 2 * data_.vocabulary < config_.model.vocab_size)
    log::warning(
        "the data's tokenizer has {} tokens and the model of {} {}: are the data of its tokenizer (`baleen tokenize --tokenizer {}`)?",
        data_.vocabulary, config_.model_path, config_.model.vocab_size, config_.model_path);
  if (config_.training.eval_every > 0 && data_.validation == nullptr)
    log::warning("training.eval_every = {} has no effect: no data.validation is named", config_.training.eval_every);
  if (config_.comm.bucket_mb != CommConfig{}.bucket_mb)
    log::warning("comm.bucket_mb = {} has no effect: every backend sends a block's tensors as one", config_.comm.bucket_mb);
}

ExitCode Trainer::run() {
  try {
    return run_steps();
  } catch (const Error& error) {
    // Bad numbers are found by all ranks together: a checkpoint of better ones that is under way is still of use.
    if (error.code() == ExitCode::bad_numbers) {
      watch_->begin_unlimited("completing the last checkpoint");
      saver_->finish();
    }
    throw;
  }
}

ExitCode Trainer::run_steps() {
  const std::int64_t steps = config_.training.steps;
  if (start_step_ >= steps && saved_step_ >= 0) {
    if (world_.rank() == 0) log::info("the run is finished: step {} of {}", start_step_, steps);
    export_if(export_is_old());
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
    watch_->begin_step(step);
    const bool trained = train_step(step);
    if (traced) write_trace(step);
    if (!trained) {
      finish_steps(0);
      if (saved_step_ != step - 1) save(step - 1);
      watch_->begin_unlimited("completing the last checkpoint");
      saver_->finish();
      if (world_.rank() == 0)
        log::info("stopped by a signal after step {}; the checkpoint is saved: run the same command again to go on", step - 1);
      return ExitCode::stopped;
    }
    const auto due = [&](std::int64_t every) { return every > 0 && step % every == 0; };
    const bool evaluate = due(config_.training.eval_every) || (config_.training.eval_every > 0 && step == steps);
    if (evaluate || due(config_.fault.replica_check_every) || due(config_.checkpoint.every) || step == steps) finish_steps(0);
    if (spike_) {
      rewind(*std::exchange(spike_, std::nullopt));
      step = start_step_;
      continue;
    }
    if (evaluate) validate(step);
    if (due(config_.fault.replica_check_every)) check_replicas();
    if (due(config_.checkpoint.every)) save(step);
  }
  if (saved_step_ != steps) save(steps);
  watch_->begin_unlimited("completing the last checkpoint");
  saver_->finish();
  export_if(true);
  return ExitCode::done;
}

void Trainer::write_trace(std::int64_t step) {
  engine_.settle_weights();
  trace_.stop();
  trace_.write(axes_.everyone(), trace_file_);
  if (world_.rank() == 0) log::info("the trace of step {} is in {}", step, trace_file_.string());
}

bool Trainer::export_is_old() const {
  if (resume_.kind == ResumePolicy::Kind::step) return true;  // it may be of a step that was given up
  std::error_code none;
  const auto exported = std::filesystem::last_write_time(run_ / "export/config.json", none);
  return none || exported < std::filesystem::last_write_time(checkpoint::find_checkpoint(run_, saved_step_) / "manifest.json");
}

void Trainer::export_if(bool due) {
  if (!config_.checkpoint.export_hf) return;
  watch_->begin_unlimited("exporting");
  const std::filesystem::path folder = run_ / "export";
  const bool mine = world_.rank() == 0 && due;
  Background exporting;
  if (mine)
    exporting.start("export", [this, folder](const std::stop_token&) {
      std::filesystem::remove_all(folder);  // of fewer steps
      export_model(run_, folder);
    });
  // Whoever left before would take rank 0 along, under mpirun; nobody waits for longer than this at a time.
  constexpr auto moment = std::chrono::milliseconds(100);
  for (std::int32_t busy = 1; busy != 0;) {
    exporting.wait_for(moment);
    busy = exporting.done() ? 0 : 1;
    axes_.everyone().all_reduce(&busy, &busy, 1, DType::i32, ReduceOp::max).wait();
  }
  if (const auto failure = exporting.failure()) throw *failure;
  if (mine) log::info("exported to {}", folder.string());
}

template <class Row>
void Trainer::record(const Row& row) {
  metrics_->append(row);
  if (events_ != nullptr) events_->append(row);
}

bool Trainer::train_step(std::int64_t step) {
  MetricsRow row;
  const std::uint64_t bytes = axes_.bytes_sent(), busy = axes_.busy_nanoseconds();
  if (training_step_->pending() == 0) exposed_ = engine_.exposed_nanoseconds();
  const CheckpointSaver::Votes saving = saver_->tell();
  std::array<double, 3> votes{stop_() ? 1.0 : 0.0, saving.unwritten, saving.failed};
  const bool trained = training_step_->enqueue(step, votes);
  saver_->hear({votes[1], votes[2]});
  if (!trained) return false;
  row.step = step;
  row.lr = config_.schedule().at(step);
  row.comm_bytes = axes_.bytes_sent() - bytes;
  row.comm_ms = static_cast<double>(axes_.busy_nanoseconds() - busy) / 1e6;
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
      if (error.code() == ExitCode::bad_numbers) meet_before_the_end();
      throw;
    }
    // Of a GPU only now: the next step has been enqueued, but has hardly begun.
    row.bubble_fraction = engine_.bubble_fraction(training_step_->pending());
    row.comm_exposed_ms = static_cast<double>(engine_.exposed_nanoseconds() - exposed_) / 1e6;
    exposed_ = engine_.exposed_nanoseconds();
    finish_step(result, row);
  }
}

void Trainer::finish_step(const StepResult& result, MetricsRow row) {
  const std::int64_t step_tokens = config_.training.global_batch_size * config_.training.sequence_length;
  tokens_ += step_tokens;
  watch_->end_step(training_step_->reading_seconds(), result.seconds);
  const bool too_many = count_skipped(result);
  if (!too_many && (spike_ || is_spike(result))) {
    if (!spike_) spike_ = result;
    return;  // of a future that is given up
  }
  if (metrics_ != nullptr) show_step(result, row, too_many);
  if (too_many) {
    meet_before_the_end();
    throw Error(ExitCode::bad_numbers, fmt::format("the numbers went bad in {} steps in a row", skipped_in_a_row_), result.skipped,
                "the weights are those before the first of them; go on from the last checkpoint with a lower optimizer.lr, or raise "
                "fault.skip_limit");
  }
}

void Trainer::meet_before_the_end() {
  try {
    axes_.everyone().barrier().wait();
  } catch (const Error&) {
    // A rank has failed for a reason of its own, which it tells itself: nobody is left to wait for.
  }
}

void Trainer::show_step(const StepResult& result, MetricsRow& row, bool last) {
  const std::int64_t step_tokens = config_.training.global_batch_size * config_.training.sequence_length;
  row.loss = result.loss;
  row.grad_norm = result.grad_norm;
  row.tokens = tokens_;
  row.step_ms = 1e3 * result.seconds;
  row.tokens_per_s = static_cast<double>(step_tokens) / result.seconds;
  row.model_tflops = row.tokens_per_s * config_.model.flops_per_token(config_.training.sequence_length) / world_.size() / 1e12;
  row.mfu = model_flops_utilisation(row.model_tflops, engine_.device().description(), engine_.units().options().compute);
  row.memory_peak_bytes = engine_.device().peak_bytes();
  if (row.step % config_.metrics.every == 0 || row.step == config_.training.steps || last) record(row);
  progress_->show(row);
}

bool Trainer::count_skipped(const StepResult& result) {
  if (result.skipped.empty()) {
    skipped_in_a_row_ = 0;
    return false;
  }
  if (world_.rank() == 0) log::warning("a step is skipped: loss {}, gradient norm {}; {}", result.loss, result.grad_norm, result.skipped);
  return ++skipped_in_a_row_ >= config_.fault.skip_limit;
}

bool Trainer::is_spike(const StepResult& result) {
  const FaultConfig& fault = config_.fault;
  if (fault.spike_factor == 0 || !result.skipped.empty()) return false;
  const auto window = static_cast<std::size_t>(fault.spike_window);
  if (losses_.size() == window) {
    std::vector<double> sorted;
    for (const auto& [step, loss] : losses_) sorted.push_back(loss);
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(window / 2), sorted.end());
    const double usual = sorted[window / 2];
    if (result.loss > fault.spike_factor * usual) {
      if (saved_step_ >= 0 && rewinds_ < fault.spike_limit) {
        if (world_.rank() == 0)
          log::warning(
              "the loss of step {} is {:.4g}, the median of the {} steps before {:.4g}: going back to the last checkpoint, without the "
              "batches since",
              result.step, result.loss, window, usual);
        return true;
      }
      if (saved_step_ >= 0)
        throw Error(
            ExitCode::bad_numbers,
            fmt::format("the loss of step {} is {}, and the run has gone back {} times already", result.step, result.loss, rewinds_),
            "[fault] spike_limit", "lower optimizer.lr, or raise fault.spike_skip to leave out more of the data");
      if (world_.rank() == 0)
        log::warning("the loss of step {} is {:.4g}, the median of the {} steps before {:.4g}, and there is no checkpoint to go back to",
                     result.step, result.loss, window, usual);
    }
    losses_.pop_front();
  }
  losses_.emplace_back(result.step, result.loss);
  return false;
}

void Trainer::rewind(const StepResult& spike) {
  watch_->begin_unlimited("going back to the last checkpoint");
  finish_steps(0);
  spike_.reset();
  saver_->finish();
  const std::int64_t rewinds = rewinds_ + 1;
  // Step s reads batch s - 1 + skipped: the first step after the checkpoint is to read the first batch behind those left out.
  const std::int64_t next_batch = spike.step + skipped_batches_ + config_.fault.spike_skip;
  const std::int64_t step = restore_newest();
  BALEEN_CHECK(step >= 0 && step < spike.step, step, spike.step);
  skipped_batches_ = next_batch - step;
  training_step_->skip_batches(skipped_batches_);
  rewinds_ = rewinds;
  axes_.everyone().barrier().wait();
  if (world_.rank() == 0) {
    open_records();
    log::info("going on from step {}; {} batches of the data are left out so far", step, skipped_batches_);
  }
  progress_.emplace(start_step_ + 1, config_.training.steps, world_.rank() == 0);
}

void Trainer::validate(std::int64_t step) {
  if (data_.validation == nullptr) return;
  const std::int64_t wanted = config_.training.eval_steps * config_.training.global_batch_size;
  const EvaluationResult result =
      evaluate(engine_, *data_.validation, std::min<std::int64_t>(wanted, static_cast<std::int64_t>(data_.validation->samples())));
  if (metrics_ == nullptr) return;
  const ValidationRow row{step, result.loss, result.loss / std::numbers::ln2 / data_.validation_bytes_per_token};
  record(row);
  progress_->show(row);
}

void Trainer::check_replicas() {
  engine_.settle_weights();
  watch_->begin_unlimited("comparing replicas");
  baleen::check_replicas(engine_.group(), engine_.units());
}

void Trainer::save(std::int64_t step) {
  watch_->begin_unlimited(fmt::format("saving step {}", step));
  engine_.settle_weights();
  TrainingState state;
  state.step = step;
  state.tokens = tokens_;
  state.skipped_batches = skipped_batches_;
  state.losses.assign(losses_.begin(), losses_.end());
  state.rewinds = rewinds_;
  state.skipped_in_a_row = skipped_in_a_row_;
  state.model_config = model_config_json(config_.model);
  state.tokenizer = data_.tokenizer_json;
  state.data_fingerprint = data_fingerprint_;
  saver_->begin(state);
  saved_step_ = step;
}

}  // namespace baleen
