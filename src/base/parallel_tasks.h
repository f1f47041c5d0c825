// Tasks of unequal cost for the threads of the OpenMP team.
#pragma once

#include <omp.h>

#include <cstdint>
#include <exception>

namespace baleen {

// Calls body(task, thread) for each task in [0, tasks), the next one to whichever thread is free: for tasks of unequal cost whose results
// do not depend on who computes them. The first exception of one is thrown when all have ended; none may
// leave an `omp critical` inside a body, which ends the process: take a mutex.
template <class Body>
void parallel_tasks(std::int64_t tasks, Body&& body) {
  if (tasks <= 1 || omp_get_max_threads() == 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    try {
      body(task, omp_get_thread_num());
    } catch (...) {
#pragma omp critical(baleen_parallel_tasks)
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace baleen
