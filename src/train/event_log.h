// RUN/events/: the metrics as scalars that TensorBoard reads.
//
// A file is a sequence of records (u64 length, masked CRC-32C of the length, data, masked CRC-32C of the data), each record one Event of
// tensorflow/core/util/event.proto. Three messages with seven fields are all that is needed, and are encoded here by hand: that takes fewer
// lines than building with protoc, and keeps a second libprotobuf out of the process (docs/decisions/004-tensorboard-events-by-hand.md).
#pragma once

#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <utility>

#include "train/metrics.h"

namespace baleen {

class EventLog {
 public:
  // The first row starts a file of its own in `folder`, which is created. Of files that earlier starts of the run left, the records after
  // `last_step` and a torn end are cut off. Throws Error(bad_data) naming the file.
  EventLog(const std::filesystem::path& folder, std::int64_t last_step);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // One event with a scalar for each number of the row, under its name in metrics.jsonl; those that are not known are left out. Flushed.
  void append(const MetricsRow& row);
  void append(const ValidationRow& row);

 private:
  using Scalars = std::initializer_list<std::pair<const char*, double>>;
  void start_file();
  void write_scalars(std::int64_t step, Scalars scalars);
  void write_record(const std::string& event);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace baleen
