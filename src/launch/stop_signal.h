// "Please stop": SIGTERM, SIGINT and SIGUSR1 as a flag that a rank looks at between two steps.
#pragma once

#include <array>
#include <csignal>

namespace baleen {

class StopSignal {
 public:
  static constexpr std::array<int, 3> signals{SIGTERM, SIGINT, SIGUSR1};

  // Installs the handlers and unblocks the signals: a launcher blocks them until its rank can honour them. One object a process.
  StopSignal();
  // Puts back what was there.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return signal() != 0; }
  // The latest signal, or 0.
  int signal() const;

 private:
  std::array<struct sigaction, 3> previous_{};
  sigset_t previous_mask_{};
};

}  // namespace baleen
