// What comm/mpi/mpi_world.h says in a build without MPI.
#include "base/error.h"
#include "comm/mpi/mpi_world.h"

namespace baleen {

std::string mpi_library() {
  return "";
}

std::unique_ptr<World> create_mpi_world(int, int, const MpiOptions&) {
  throw Error(ExitCode::bad_config, "this build has no MPI", "[comm] backend = \"mpi\"",
              "install libopenmpi-dev (or libmpich-dev) and build again, or use backend = \"shm\" on one machine");
}

}  // namespace baleen
