// A run's configuration: the TOML file of docs/config.md, `--set` overrides, and its resolved form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "optim/adamw_optimizer.h"
#include "optim/lr_schedule.h"

namespace baleen {

struct DataConfig {
  // Token files or patterns, relative to the working directory or, where nothing matches there, to the config file. Several of `train` are
  // the sources of a mixture, with a weight each.
  std::vector<std::string> train;
  std::string validation;
  std::vector<double> weights;
  std::string tokenizer;  // "" takes it from the data's sidecar
  std::uint64_t seed = 1234;
};

struct TrainingConfig {
  std::int64_t steps = 0;
  std::int64_t sequence_length = 0;
  std::int64_t micro_batch_size = 1;   // sequences
  std::int64_t global_batch_size = 0;  // sequences; 0 in input: micro_batch_size · data ranks
  std::string dtype = "bf16";          // compute
  std::string device = "auto";
  std::int64_t threads = 0;  // 0: cores / local ranks
  std::uint64_t seed = 1234;
  double gradient_clip = 1.0;  // 0: off
  std::string recompute = "none";
  std::int64_t head_chunks = 0;  // of a micro-batch's logits; 0: automatic
  bool deterministic = false;
  std::string offload = "none";
  std::int64_t eval_every = 0;
  std::int64_t eval_steps = 20;
};

struct LrScheduleConfig {
  LrScheduleKind kind = LrScheduleKind::constant;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // 0 in input: the steps (cosine, linear), a tenth of them (wsd)
  double final_fraction = 0.1;
};

struct ParallelismConfig {
  std::int64_t data = -1;  // -1: the rest of the world
  std::int64_t replicate = 1, tensor = 1, context = 1, pipeline = 1;
  std::int64_t zero = 0;
  bool sequence_parallel = true;
  std::string schedule = "1f1b";
  std::int64_t virtual_stages = 1;
};

struct CommConfig {
  std::string backend = "auto";
  double timeout_s = 60;
  double bucket_mb = 25;    // without effect: every backend sends unit by unit
  bool overlap = true;      // false: compute waits for every operation as soon as it is enqueued; the same bits, for comparison
  bool peer_copies = true;  // between GPUs of one host large gathers go by copy engines; false: by the library's kernels
  std::string gradient_reduction = "sum";  // sum | avg: how gradients are averaged over ranks
};

struct CheckpointConfig {
  std::int64_t every = 100;  // steps; 0: only at the end
  std::int64_t keep = 3;
  bool async = true;
  bool export_hf = false;
};

struct MetricsConfig {
  std::int64_t every = 1;
  bool tensorboard = true;
};

struct FaultConfig {
  std::int64_t max_restarts = 3;
  std::int64_t replica_check_every = 100;  // steps; 0: never
  std::string nonfinite = "stop";
  std::int64_t skip_limit = 10;  // steps skipped in a row after which the run stops
  // A loss above spike_factor times the median of the spike_window losses before it is a spike: the run goes back to the last checkpoint
  // and leaves out the batches since then, that of the spike and spike_skip more; at most spike_limit times.
  double spike_factor = 0;  // 0: off
  std::int64_t spike_window = 50;
  std::int64_t spike_skip = 0;
  std::int64_t spike_limit = 3;
};

struct Config {
  std::string source;      // the file's name, for messages
  std::string preset;      // as given
  std::string model_path;  // as given
  std::string init = "";   // weights | random | "" (weights where the path has them)
  ModelConfig model;       // sizes may still be 0 until resolve_model
  DataConfig data;
  TrainingConfig training;
  double lr = 3e-4;
  AdamWConfig adamw;
  std::string state_dtype = "fp32", gradient_dtype = "fp32";
  LrScheduleConfig lr_schedule;
  ParallelismConfig parallelism;
  CommConfig comm;
  CheckpointConfig checkpoint;
  MetricsConfig metrics;
  FaultConfig fault;

  LrSchedule schedule() const;
  // Ranks the layout needs: the product of the degrees, data = -1 counting as 1.
  std::int64_t ranks_named() const;
};

// Reads and checks a file and overrides "section.key=value" (the value in TOML, or a bare string). Throws Error(bad_config) with file,
// line, key, and the nearest known key for an unknown one.
Config read_config(const std::filesystem::path& file, const std::vector<std::string>& overrides);
Config parse_config(std::string_view text, const std::string& source, const std::vector<std::string>& overrides);

// Takes vocabulary and length from the data where the model section leaves them open, and checks the model against both.
void resolve_model(Config& config, std::int64_t data_vocabulary);
// Fills the data degree and the batch size for a world of `world` ranks; refuses what this build cannot run and batches that do not divide.
// `launcher` has started the ranks, such as "torchrun"; "": their number is --ranks.
void resolve_layout(Config& config, int world, const std::string& launcher = "");

// The resolved configuration as TOML that read_config takes.
std::string config_toml(const Config& config);

}  // namespace baleen
