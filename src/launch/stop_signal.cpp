#include "launch/stop_signal.h"

#include <pthread.h>

#include <atomic>

namespace baleen {
namespace {

// A signal handler gets no argument of ours, so the flag it sets has to be reachable by name: the one mutable namespace-scope variable of
// the project. Lock-free, hence safe in a handler.
std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) {
  received_signal.store(signal, std::memory_order_relaxed);
}

}  // namespace

StopSignal::StopSignal() {
  received_signal.store(0, std::memory_order_relaxed);
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;  // an interrupted read or write goes on: nothing between two steps fails because of a signal
  sigemptyset(&action.sa_mask);
  sigset_t unblock;
  sigemptyset(&unblock);
  for (std::size_t index = 0; index < signals.size(); ++index) {
    sigaction(signals[index], nullptr, &previous_[index]);
    if (previous_[index].sa_handler == SIG_IGN) continue;  // a shell's background job ignores Ctrl-C: leave it so
    sigaction(signals[index], &action, nullptr);
    sigaddset(&unblock, signals[index]);
  }
  pthread_sigmask(SIG_UNBLOCK, &unblock, &previous_mask_);
}

StopSignal::~StopSignal() {
  pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  for (std::size_t index = 0; index < signals.size(); ++index) sigaction(signals[index], &previous_[index], nullptr);
}

int StopSignal::signal() const {
  return received_signal.load(std::memory_order_relaxed);
}

}  // namespace baleen
