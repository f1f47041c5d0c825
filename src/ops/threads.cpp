#include "ops/threads.h"

#include <omp.h>

#include "base/error.h"

namespace baleen::ops {

void set_threads(int threads) {
  BALEEN_CHECK(threads >= 0, threads);
  omp_set_num_threads(threads > 0 ? threads : omp_get_num_procs());
}

int threads() {
  return omp_get_max_threads();
}

}  // namespace baleen::ops
