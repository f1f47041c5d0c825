#include "launch/stop_signal.h"

#include <pthread.h>

#include <ctime>

namespace baleen {

StopSignal::StopSignal() {
  sigemptyset(&blocked_);
  for (const int signal : signals) {
    struct sigaction now{};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&blocked_, signal);  // a shell's background job ignores Ctrl-C: leave it so
  }
  pthread_sigmask(SIG_BLOCK, &blocked_, &previous_mask_);
}

StopSignal::~StopSignal() {
  (void)signal();
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
}

int StopSignal::signal() const {
  constexpr timespec at_once{};
  for (int signal = sigtimedwait(&blocked_, nullptr, &at_once); signal > 0; signal = sigtimedwait(&blocked_, nullptr, &at_once))
    received_ = signal;
  return received_;
}

}  // namespace baleen
