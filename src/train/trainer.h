// A training run on one rank: from the resolved configuration to the last checkpoint.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/run_directory.h"
#include "comm/communicator.h"
#include "train/checkpoint_saver.h"
#include "train/config.h"
#include "train/event_log.h"
#include "train/metrics.h"
#include "train/parallel_axes.h"
#include "train/progress.h"
#include "train/rank_watch.h"
#include "train/run_data.h"
#include "train/step.h"
#include "train/trace.h"
#include "train/training_checkpoint.h"

namespace baleen {

struct ResumePolicy {
  enum class Kind { automatic, never, step };
  Kind kind = Kind::automatic;
  std::int64_t step = 0;
  // RankEnvironment's: where the ranks of a job are started again after it has begun, the policy is automatic, whatever it was.
  std::string job = {};
  int restarts = 0;
};
// "auto", "never" or a step. Throws Error(bad_config).
ResumePolicy parse_resume(const std::string& text);

class Trainer {
 public:
  // `config` is resolved for world.size() ranks. Rank 0 creates and locks the run directory. `stop` is asked once a step.
  // `trace`: where the trace of a step goes (the second that this process trains, so that nothing happens in it for the first time); empty:
  // none.
  Trainer(Config config, RunData data, World& world, std::filesystem::path run, ResumePolicy resume, std::function<bool()> stop,
          std::filesystem::path trace = {}, ProgressReporter reporter = {});

  // Trains to the end or until stopped; ExitCode::done or ExitCode::stopped.
  ExitCode run();

 private:
  void prepare_run_directory();
  void restore();
  // Whether this job has begun before and its policy has been carried out. Collective.
  bool begun_before() const;
  // Metrics and progress from start_step_ on; rank 0's.
  void open_records();
  // The newest checkpoint that can be read to its end, or -1; each that cannot is named and set aside. Collective.
  std::int64_t restore_newest();
  // Throws Error where this rank cannot read what it needs; touches no other rank.
  void restore_from(const std::filesystem::path& directory);
  void log_start() const;
  // False when a stop was agreed on instead of a step. Besides, the ranks tell each other how far the save under way is.
  ExitCode run_steps();
  bool train_step(std::int64_t step);
  void write_trace(std::int64_t step);
  // Takes the results of the steps begun, but for the last `leave`, and records them.
  void finish_steps(int leave);
  void finish_step(const StepResult& result, MetricsRow row);
  void show_step(const StepResult& result, MetricsRow& row, bool last);
  // Before all ranks give up for the same reason: the first that ends takes the others along, and rank 0 is to have its last row by then.
  void meet_before_the_end();
  // Whether these are too many in a row.
  bool count_skipped(const StepResult& result);
  // Whether the loss of a step is a spike that the run is to go back for; remembers it where it is none.
  bool is_spike(const StepResult& result);
  // Goes back to the last checkpoint and leaves out the batches up to that of `spike`. Collective.
  void rewind(const StepResult& spike);
  void validate(std::int64_t step);
  // Begins to; it is complete after saver_->finish().
  void save(std::int64_t step);
  // The last checkpoint as a Hugging Face folder, RUN/export, where the config wants one and rank 0 finds it due. Collective.
  void export_if(bool due);
  // Whether there is none of the last checkpoint.
  bool export_is_old() const;
  // Of the weights that ranks hold in common.
  void check_replicas();
  template <class Row>
  void record(const Row& row);

  Config config_;
  RunData data_;
  World& world_;
  std::filesystem::path run_;
  ResumePolicy resume_;
  std::function<bool()> stop_;
  std::unique_ptr<checkpoint::RunDirectoryLock> lock_;
  std::filesystem::path trace_file_;
  StepTrace trace_;
  std::shared_ptr<Device> device_;
  ParallelAxes axes_;
  Engine engine_;
  AdamWOptimizer optimizer_;
  std::optional<CheckpointSaver> saver_;
  std::optional<TrainingStep> training_step_;
  std::optional<RankWatch> watch_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<EventLog> events_;  // nullptr: not wanted
  std::optional<Progress> progress_;
  std::deque<MetricsRow> begun_;  // of the steps whose results are still to come: what is known of their rows
  std::int64_t start_step_ = 0, saved_step_ = -1, tokens_ = 0, skipped_batches_ = 0;
  std::int64_t skipped_in_a_row_ = 0, rewinds_ = 0;
  std::uint64_t exposed_ = 0;                           // engine's nanoseconds when the step at hand began
  std::deque<std::pair<std::int64_t, double>> losses_;  // step and loss, of the window that spikes are measured against
  std::optional<StepResult> spike_;
  std::string data_fingerprint_;  // DataFingerprint::to_json(), of the data as they were when the run began or went on
};

}  // namespace baleen
