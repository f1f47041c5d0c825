#include "train/data_parallel.h"

#include <algorithm>

#include "comm/mesh.h"
#include "comm/staged_communicator.h"
#include "device/gpu.h"

namespace baleen {

DataAxes::DataAxes(World& world, std::int64_t replicate, std::int64_t data, Device* device) {
  const Mesh mesh({.replicate = static_cast<int>(replicate), .dp = static_cast<int>(data)});
  const auto create = [&](std::initializer_list<Axis> axes, const char* name) -> std::unique_ptr<Communicator> {
    const bool member = world.rank() < mesh.world_size();
    auto communicator = world.create_communicator(member ? mesh.group(world.rank(), axes) : std::vector<int>{}, name);
    if (communicator == nullptr || device == nullptr || device->kind() == DeviceKind::cpu) return communicator;
    return std::make_unique<StagedCommunicator>(std::move(communicator), *device);
  };
  batch_ = create({Axis::replicate, Axis::dp}, "replicate x dp");
  reduce_ = create({Axis::dp}, "dp");
  gather_ = create({Axis::dp}, "dp (weights)");
  if (replicate > 1) replicas_ = create({Axis::replicate}, "replicate");
}

std::uint64_t DataAxes::bytes_sent() const {
  return batch_->bytes_sent() + reduce_->bytes_sent() + gather_->bytes_sent() + (replicas_ ? replicas_->bytes_sent() : 0);
}
std::uint64_t DataAxes::busy_nanoseconds() const {
  return batch_->busy_nanoseconds() + reduce_->busy_nanoseconds() + gather_->busy_nanoseconds() + (replicas_ ? replicas_->busy_nanoseconds() : 0);
}

std::shared_ptr<Device> create_training_device(const Config& config, int rank) {
  if (config.training.device != "gpu") return create_cpu_device();
  const GpuList gpus = list_gpus();
  const int count = std::max(1, static_cast<int>(gpus.names.size()));
  // The host waits for a whole step, which may take longer than any wait for another rank.
  const std::chrono::milliseconds timeout(std::max<std::int64_t>(600'000, static_cast<std::int64_t>(config.comm.timeout_s * 1000)));
  return create_gpu_device(rank % count, {timeout, config.training.deterministic});
}

EngineOptions training_engine_options(const Config& config, std::shared_ptr<Device> device) {
  return {config.model,
          config.training.micro_batch_size,
          config.training.sequence_length,
          static_cast<int>(config.training.threads),
          StorageKind::training,
          config.comm.gradient_reduction == "avg" ? ReduceOp::avg : ReduceOp::sum,
          static_cast<int>(config.parallelism.zero),
          config.training.dtype == "bf16" ? DType::bf16 : DType::f32,
          config.state_dtype == "bf16" ? DType::bf16 : DType::f32,
          config.training.recompute == "full"        ? Recompute::full
          : config.training.recompute == "selective" ? Recompute::selective
                                                     : Recompute::none,
          std::move(device),
          config.training.offload == "optimizer"};
}

}  // namespace baleen
