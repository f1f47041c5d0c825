// CPU clusters: ranks that mpirun or srun started, over the machine's MPI (Open MPI or MPICH, chosen when baleen is built).
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace baleen {

struct MpiOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of every wait for another rank
  std::size_t largest_count = std::size_t{1} << 30;              // elements of one call of MPI; tests take a small one
};

// Whether this build has the backend, and which MPI: "Open MPI 4.1.4", or empty.
std::string mpi_library();
// Initialises MPI; once a process. Throws Error(bad_config) where this build has no MPI, where MPI counts other ranks than `rank` of `size`
// (this program was started by something else than this MPI's launcher).
std::unique_ptr<World> create_mpi_world(int rank, int size, const MpiOptions& options);

}  // namespace baleen
