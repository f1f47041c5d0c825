#include "train/parallel_axes.h"

#include <algorithm>
#include <utility>

#include "comm/gpu_communicator.h"
#include "device/gpu.h"

namespace baleen {
namespace {

MeshDegrees degrees_of(const ParallelLayout& layout) {
  return {static_cast<int>(layout.pp), static_cast<int>(layout.replicate), static_cast<int>(layout.dp), static_cast<int>(layout.cp),
          static_cast<int>(layout.tp)};
}

// NCCL connects two ranks on their first message, for which both wait on the host, and with memory of its own: here, where nothing else is
// under way and before anybody asks what is free.
void connect(Communicator* ring, Device* device) {
  if (ring == nullptr || device == nullptr || device->kind() == DeviceKind::cpu) return;
  const Buffer bytes = device->allocate("first messages", 2);
  ring->exchange(bytes.data(), ring->next(), bytes.as<std::byte>() + 1, ring->previous(), 1, DType::u8).wait();
}

}  // namespace

Mesh mesh_of(const ParallelLayout& layout) {
  return Mesh(degrees_of(layout));
}

ParallelAxes::ParallelAxes(World& world, const ParallelLayout& layout, const ModelConfig& model, Device* device, CommObserver* observer)
    : mesh_(degrees_of(layout)), device_(device), observer_(observer) {
  const bool member = world.rank() < mesh_.world_size();
  everyone_ = create(world, {Axis::pp, Axis::replicate, Axis::dp, Axis::cp, Axis::tp}, "world", Alone::yes);
  Communicator* const batch = create(world, {Axis::replicate, Axis::dp, Axis::cp}, "replicate x dp", Alone::yes);
  Communicator* const reduce = create(world, {Axis::dp, Axis::cp}, "dp", Alone::yes);
  Communicator* const gather = create(world, {Axis::dp, Axis::cp}, "dp (weights)", Alone::yes);
  Communicator* const replicas = create(world, {Axis::replicate}, "replicate");
  Communicator* const tensor = create(world, {Axis::tp}, "tp");
  Communicator* const ring = create(world, {Axis::cp}, "cp");
  Communicator* const ring_gradients = create(world, {Axis::cp}, "cp (gradients)");
  for (Communicator* passing_on : {ring, ring_gradients}) connect(passing_on, device);
  Communicator* const copies = create(world, {Axis::tp}, "tp (gradients)");
  // Of the ranks of axis tp, consecutive ones share a KV head where there are fewer heads than ranks.
  std::vector<int> same_heads;
  const int sharing = static_cast<int>(layout.tp / std::max<std::int64_t>(1, model.num_key_value_heads));
  if (member && sharing > 1)
    for (const int rank : mesh_.group(world.rank(), Axis::tp))
      if (mesh_.coordinate(rank, Axis::tp) / sharing == mesh_.coordinate(world.rank(), Axis::tp) / sharing) same_heads.push_back(rank);
  Communicator* const kv_heads = create(world, std::move(same_heads), "tp (KV heads)");
  Communicator* const stages = create(world, {Axis::pp}, "pp");
  Communicator* const tied = create_tied(world, model);
  create_links(world, layout.virtual_stages > 1);
  if (!member) return;

  groups_.emplace(DataGroup(*batch, *reduce, *gather), tensor);
  DataGroup& data = groups_->data;
  data.replicas = replicas;
  data.tensor = copies;
  data.kv_heads = kv_heads;
  data.everyone = everyone_;
  const auto at = [&](Axis axis) { return mesh_.coordinate(world.rank(), axis); };
  data.data_rank = at(Axis::replicate) * mesh_.degree(Axis::dp) + at(Axis::dp);
  data.data_size = mesh_.degree(Axis::replicate) * mesh_.degree(Axis::dp);
  data.parts = mesh_.world_size() / mesh_.degree(Axis::replicate);
  data.part = ((at(Axis::pp) * mesh_.degree(Axis::dp) + at(Axis::dp)) * mesh_.degree(Axis::cp) + at(Axis::cp)) * mesh_.degree(Axis::tp) +
              at(Axis::tp);
  data.tied = tied;
  groups_->links = links_.get();
  groups_->stages = stages;
  groups_->ring = ring;
  groups_->ring_gradients = ring_gradients;
  groups_->place = {at(Axis::pp), mesh_.degree(Axis::pp), static_cast<int>(layout.virtual_stages)};
  data.counts_losses = at(Axis::tp) == 0 && at(Axis::pp) + 1 == mesh_.degree(Axis::pp);
  data.counts_batch = at(Axis::pp) == 0 && at(Axis::cp) == 0 && at(Axis::tp) == 0;
}

Communicator* ParallelAxes::create(World& world, std::initializer_list<Axis> axes, const char* name, Alone alone) {
  return create(world, world.rank() < mesh_.world_size() ? mesh_.group(world.rank(), axes) : std::vector<int>{}, name, alone);
}

Communicator* ParallelAxes::create(World& world, std::vector<int> ranks, const char* name, Alone alone) {
  if (ranks.size() == 1 && alone == Alone::no) ranks.clear();
  auto communicator = create_on_device(world, ranks, name);
  return communicator == nullptr ? nullptr : all_.emplace_back(std::move(communicator)).get();
}

std::unique_ptr<Communicator> ParallelAxes::create_on_device(World& world, const std::vector<int>& ranks, const std::string& name) const {
  auto communicator = world.create_communicator(ranks, name);
  if (communicator != nullptr) communicator->observe(observer_);
  if (communicator == nullptr || device_ == nullptr || device_->kind() == DeviceKind::cpu) return communicator;
  return for_gpu_buffers(std::move(communicator), *device_, {world.gpu_backend(), world.gpu_timeout(), world.peer_copies()});
}

// The ranks of the first and of the last stage that hold the same part of the embedding.
Communicator* ParallelAxes::create_tied(World& world, const ModelConfig& model) {
  std::vector<int> ends;
  if (world.rank() < mesh_.world_size() && model.tie_word_embeddings) {
    const std::vector<int> stages = mesh_.group(world.rank(), Axis::pp);
    if (world.rank() == stages.front() || world.rank() == stages.back()) ends = {stages.front(), stages.back()};
    if (stages.size() == 1) ends.clear();
  }
  return create(world, std::move(ends), "tied embedding");
}

void ParallelAxes::create_links(World& world, bool ring) {
  const int stages = mesh_.degree(Axis::pp);
  if (stages == 1) return;
  const auto make = [&](const std::vector<int>& ranks, const std::string& name) { return create_on_device(world, ranks, name); };
  if (world.rank() < mesh_.world_size()) {
    links_ = std::make_unique<PipelineLinks>(make, world.rank(), mesh_.group(world.rank(), Axis::pp), ring);
    return;
  }
  // As many calls as the members make.
  for (int call = 0; call < 2 * (std::min(2, stages - 1) + (ring ? 1 : 0)); ++call) make({}, "no stage");
}

std::uint64_t ParallelAxes::bytes_sent() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, sent] : bytes_by_communicator()) bytes += sent;
  return bytes;
}
std::map<std::string, std::uint64_t> ParallelAxes::bytes_by_communicator() const {
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& communicator : all_) bytes[communicator->name()] += communicator->bytes_sent();
  if (links_ != nullptr) bytes["pp activations and gradients"] += links_->bytes_sent();
  return bytes;
}
std::uint64_t ParallelAxes::busy_nanoseconds() const {
  std::uint64_t busy = links_ != nullptr ? links_->busy_nanoseconds() : 0;
  for (const auto& communicator : all_) busy += communicator->busy_nanoseconds();
  return busy;
}

std::shared_ptr<Device> create_training_device(const Config& config, World& world) {
  if (config.training.device != "gpu") return create_cpu_device(world.size() > 1 ? world.shared_memory() : nullptr);
  // The host waits for a whole step, which may take longer than any wait for another rank.
  const std::chrono::milliseconds timeout(std::max<std::int64_t>(600'000, static_cast<std::int64_t>(config.comm.timeout_s * 1000)));
  const GpuList list = list_gpus();
  const int number = list.gpus.empty() ? 0 : list.of(world.local_rank()).number;  // without any it says why
  return create_gpu_device(number, {timeout, config.training.deterministic});
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
          config.training.offload == "optimizer",
          config.parallelism.sequence_parallel,
          parse_schedule(config.parallelism.schedule),
          std::max<std::int64_t>(1, config.training.global_batch_size /
                                        (config.training.micro_batch_size * config.parallelism.data * config.parallelism.replicate)),
          config.comm.overlap,
          config.gradient_dtype == "bf16" ? DType::bf16 : DType::f32,
          config.training.head_chunks};
}

}  // namespace baleen
