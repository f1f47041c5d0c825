// The size of the OpenMP team that CPU operations on the calling thread use.
#pragma once

namespace baleen::ops {

// Takes effect for the calling thread alone (OpenMP's rule); 0 means one a core available to this process.
void set_threads(int threads);
int threads();

}  // namespace baleen::ops
