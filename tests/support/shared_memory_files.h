// What lies in /dev/shm, where a job must leave nothing.
#pragma once

#include <set>
#include <string>

namespace baleen::testing {

// The names there, but for those of MPI libraries: tests that run beside the caller's start MPI jobs.
std::set<std::string> shared_memory_files();

}  // namespace baleen::testing
