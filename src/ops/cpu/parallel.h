// Splits the items of an operation among the threads of the OpenMP team.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "base/parallel_tasks.h"

namespace baleen::ops::cpu {

// Calls body(begin, end) for consecutive ranges that cover [0, items), one a thread, each a whole number of `grain` items but the last.
// The split depends on nothing but items, grain and the number of threads. `worth` is the least number of items that pays for waking the
// team (some microseconds); below it the caller does everything. The team is either the caller or all threads: libgomp ends and restarts
// threads when the size changes. body may not throw.
template <class Body>
void parallel_ranges(std::int64_t items, std::int64_t grain, std::int64_t worth, Body&& body) {
  if (items <= 0) return;
  if (items < worth || items <= grain || omp_get_max_threads() == 1) {
    body(std::int64_t{0}, items);
    return;
  }
  const std::int64_t grains = (items + grain - 1) / grain;
#pragma omp parallel
  {
    const std::int64_t team = omp_get_num_threads(), self = omp_get_thread_num();
    const std::int64_t begin = std::min(items, grains * self / team * grain), end = std::min(items, grains * (self + 1) / team * grain);
    if (begin < end) body(begin, end);
  }
}

// While it lives, whatever the caller's thread calls works on that thread alone. Inside a team it concerns the one member, until the task
// ends.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// Rows of `columns` elements that one thread should have at least: about 8,192 elements.
inline std::int64_t worthwhile_rows(std::int64_t columns) {
  return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, columns));
}

}  // namespace baleen::ops::cpu
