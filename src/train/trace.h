// What a step did when: a file for chrome://tracing or ui.perfetto.dev, a process a rank, a row for computing and one for each
// communicator.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/executor.h"

namespace baleen {

// Hears of everything, keeps what happens while it records. Of operations that a device enqueues the times are those of the host.
class StepTrace final : public CommObserver, public PipelineObserver {
 public:
  // From now on, which is time 0, until stop(). Ranks should call it together: each counts from its own call.
  void start();
  void stop();

  void on_operation(const std::string& communicator, std::string_view operation, std::size_t bytes, Time begin, Time end) override;
  void on_action(const Action& action, PipelineClock::time_point begin, PipelineClock::time_point end) override;

  // Gathers the events of all ranks; rank 0 writes them as Chrome's trace events (JSON, times in microseconds). Collective. Throws
  // Error(bad_data) naming the file.
  void write(Communicator& everyone, const std::filesystem::path& file) const;

 private:
  struct Span {
    std::string row, name;
    std::size_t bytes;
    double begin_us, duration_us;
  };
  void add(const std::string& row, std::string name, std::size_t bytes, Time begin, Time end);

  mutable std::mutex mutex_;  // communicators' threads add too
  bool recording_ = false;
  Time origin_;
  std::vector<Span> spans_;
};

}  // namespace baleen
