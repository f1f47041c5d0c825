#include "comm/connect.h"

#include "base/error.h"
#include "comm/mpi/mpi_world.h"
#include "comm/shm/shm_world.h"
#include "comm/tcp/tcp_world.h"
#include "launch/rendezvous.h"

namespace baleen {
namespace {

[[noreturn]] void refuse(const RankEnvironment& environment, const std::string& what, const std::string& backend,
                         const std::string& remedy) {
  throw Error(ExitCode::bad_config, what, "backend \"" + backend + "\", ranks started by " + rank_source_name(environment.source), remedy);
}

bool started_by_mpirun(const RankEnvironment& environment) {
  return environment.source == RankSource::open_mpi || environment.source == RankSource::mpich;
}

bool on_one_machine(const RankEnvironment& environment) {
  return environment.local_size == environment.size;
}

std::string several_machines(const RankEnvironment& environment) {
  return std::to_string(environment.size) + " ranks in all but " + std::to_string(environment.local_size) + " on this machine";
}

std::unique_ptr<World> connect_shared_memory(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  std::shared_ptr<SharedRegion> region;
  if (environment.source == RankSource::baleen)
    region = SharedRegion::attach(Descriptor(environment.region_descriptor), environment.size);
  else
    region = environment.size == 1 ? SharedRegion::create(1) : share_region(environment, timeout);
  return std::make_unique<ShmWorld>(std::move(region), environment.rank, timeout);
}

}  // namespace

std::string choose_backend(const RankEnvironment& environment, const std::string& asked) {
  const bool launched_by_mpi = started_by_mpirun(environment) || environment.source == RankSource::slurm;
  if (asked == "mpi") {
    if (mpi_library().empty())
      refuse(environment, "this build has no MPI", asked,
             "install libopenmpi-dev (or libmpich-dev) and build again, or use backend \"shm\" on one machine");
    if (!launched_by_mpi && environment.source != RankSource::single)
      refuse(environment, "MPI finds the ranks only where its own launcher starts them", asked,
             "start them with `mpirun -n N baleen …` (or srun), without --ranks");
    return "mpi";
  }
  if (asked == "tcp") {
    if (environment.source == RankSource::baleen || environment.source == RankSource::single)
      refuse(environment, "TCP connects ranks that torchrun, mpirun or srun started", asked,
             "use backend \"shm\" (in a config \"auto\" too): ranks of one machine share memory");
    return "tcp";
  }
  if (on_one_machine(environment)) return "shm";
  if (asked == "shm")
    refuse(environment, several_machines(environment) + ": the built-in backend shares memory and so is for one machine", asked,
           "start all ranks on one machine, or use backend \"tcp\"");
  return started_by_mpirun(environment) && !mpi_library().empty() ? "mpi" : "tcp";
}

std::unique_ptr<World> connect_world(const RankEnvironment& environment, std::chrono::milliseconds timeout, const std::string& asked) {
  const std::string backend = choose_backend(environment, asked);
  std::unique_ptr<World> world = backend == "mpi"
                                     ? create_mpi_world(environment.rank, environment.size, {timeout, MpiOptions().largest_count})
                                 : backend == "tcp" ? create_tcp_world(meeting_of(environment, timeout), timeout)
                                                    : connect_shared_memory(environment, timeout);
  world->set_gpu_backend(asked, timeout);
  return world;
}

}  // namespace baleen
