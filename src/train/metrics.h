// RUN/metrics.jsonl: one JSON object a step.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>

namespace baleen {

struct MetricsRow {
  std::int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  std::int64_t tokens = 0;  // trained on so far, by all ranks, this step included
  double tokens_per_s = 0, step_ms = 0;
  double model_tflops = 0;                                // of one rank, 10¹² FLOP/s by docs/formats.md's formula
  double mfu = std::numeric_limits<double>::quiet_NaN();  // nothing where the peak is not known
  std::size_t memory_peak_bytes = 0;
  std::uint64_t comm_bytes = 0;
  double comm_ms = 0, comm_exposed_ms = 0, bubble_fraction = 0;
};

struct ValidationRow {
  std::int64_t step = 0;
  double val_loss = 0;
  double bits_per_byte = std::numeric_limits<double>::quiet_NaN();  // nothing where the data do not say their bytes
};

// Appends rows, each written and flushed whole. Doubles round-trip; non-finite ones are null.
class MetricsLog {
 public:
  // Goes on after `last_step`: rows of later steps and a torn last line are dropped. Throws Error(bad_data) naming the file.
  MetricsLog(const std::filesystem::path& file, std::int64_t last_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void append(const MetricsRow& row);
  void append(const ValidationRow& row);

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace baleen
