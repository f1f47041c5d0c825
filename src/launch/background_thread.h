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
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::thread thread(std::move(body));
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  return thread;
}

}  // namespace baleen
