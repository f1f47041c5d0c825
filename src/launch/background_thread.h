// Threads that work for others and hear no signals.
#pragma once

#include <pthread.h>

#include <csignal>
#include <string>
#include <thread>
#include <utility>

namespace baleen {

// Starts `body` under `name`, of which the system keeps 15 characters. Signals belong to the thread that holds the StopSignal.
template <class Body>
std::thread start_background(const std::string& name, Body body) {
  struct WithoutSignals {
    sigset_t all, previous;
    WithoutSignals() {
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &previous);
    }
    ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &previous, nullptr); }
  } meanwhile;
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  return thread;
}

}  // namespace baleen
