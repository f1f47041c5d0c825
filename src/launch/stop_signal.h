// "Please stop": SIGTERM, SIGINT and SIGUSR1 as a question that a rank asks between two steps.
#pragma once

#include <array>
#include <csignal>

namespace baleen {

class StopSignal {
 public:
  static constexpr std::array<int, 3> signals{SIGTERM, SIGINT, SIGUSR1};

  // Blocks the signals, but those that are ignored, in this thread and those that it starts: no handler ever runs. (oneDNN's AVX2 matrix
  // products keep data where a handler's frame goes: the heap was found damaged behind a signal that had come in one.) To be made before
  // other threads are, and by the thread that asks.
  StopSignal();
  // Puts back what was there; signals that nobody has asked about are forgotten.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return signal() != 0; }
  // The latest signal that has come, or 0.
  int signal() const;

 private:
  sigset_t blocked_{}, previous_mask_{};
  mutable int received_ = 0;
};

}  // namespace baleen
