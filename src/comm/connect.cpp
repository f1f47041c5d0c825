#include "comm/connect.h"

#include "base/error.h"
#include "comm/shm/shm_world.h"
#include "launch/rendezvous.h"

namespace baleen {

std::unique_ptr<World> connect_world(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  std::shared_ptr<SharedRegion> region;
  if (environment.source == RankSource::baleen) {
    region = SharedRegion::attach(Descriptor(environment.region_descriptor), environment.size);
  } else if (environment.size == 1) {
    region = SharedRegion::create(1);
  } else {
    if (environment.local_size != environment.size)
      throw Error(ExitCode::bad_config,
                  std::to_string(environment.size) + " ranks in all but " + std::to_string(environment.local_size) +
                      " on this machine: the built-in backend shares memory and so is for one machine",
                  "[comm] backend = \"shm\", ranks started by " + rank_source_name(environment.source),
                  "start all ranks on one machine, or use the MPI or NCCL backend");
    region = share_region(environment, timeout);
  }
  return std::make_unique<ShmWorld>(std::move(region), environment.rank, timeout);
}

}  // namespace baleen
