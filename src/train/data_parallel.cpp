#include "train/data_parallel.h"

#include "comm/mesh.h"

namespace baleen {

std::unique_ptr<Communicator> create_data_axis(World& world, std::int64_t degree) {
  const Mesh mesh({.dp = static_cast<int>(degree)});
  const bool member = world.rank() < mesh.world_size();
  return world.create_communicator(member ? mesh.group(world.rank(), Axis::dp) : std::vector<int>{}, "dp");
}

EngineOptions training_engine_options(const Config& config) {
  return {config.model,
          config.training.micro_batch_size,
          config.training.sequence_length,
          static_cast<int>(config.training.threads),
          StorageKind::training,
          config.comm.gradient_reduction == "avg" ? ReduceOp::avg : ReduceOp::sum};
}

}  // namespace baleen
