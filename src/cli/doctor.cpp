// baleen doctor
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "comm/gpu_communicator.h"
#include "comm/mpi/mpi_world.h"
#include "comm/shm/shm_world.h"
#include "device/gpu.h"
#include "launch/binding.h"
#include "launch/launcher.h"
#include "launch/rank_environment.h"
#include "ops/libraries.h"
#include "train/parallel_axes.h"

namespace baleen::cli {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// The best of a few timings of `body`, in seconds.
template <class Body>
double best_seconds(Body body) {
  double best = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto begin = Clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best;
}

// Bytes read and written a second by one thread's memcpy, in GB/s.
double copy_bandwidth() {
  const std::size_t bytes = std::size_t{128} << 20;
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes);
  return 2.0 * static_cast<double>(bytes) / best_seconds([&] { std::memcpy(to.data(), from.data(), bytes); }) / 1e9;
}

// Bus bandwidth (nccl-tests' definition) of a 16 MB all-reduce over two ranks of the built-in backend, in GB/s.
double all_reduce_bandwidth() {
  const std::size_t count = std::size_t{4} << 20;
  auto worlds = create_thread_worlds(2, std::chrono::seconds(30));
  double seconds = 0;
  const auto rank = [&](int r) {
    const auto axis = worlds[static_cast<std::size_t>(r)]->create_communicator({0, 1}, "doctor");
    std::vector<float> values(count, 1.0f);
    const double best = best_seconds([&] { axis->all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::max).wait(); });
    if (r == 0) seconds = best;
  };
  std::thread peer(rank, 1);
  rank(0);
  peer.join();
  return static_cast<double>(count * sizeof(float)) / seconds / 1e9;  // 2·(n-1)/n = 1 for two ranks
}

// As many ranks of this machine as one would start: those there are, or a GPU's each, or a core's each.
int ranks_to_bind(const RankEnvironment& ranks, const GpuList& list) {
  if (ranks.local_size > 1) return ranks.local_size;
  return list.gpus.empty() ? available_cores() : static_cast<int>(list.gpus.size());
}

}  // namespace

int run(const DoctorArguments& arguments) {
  std::vector<ParallelLayout> layouts;
  if (!arguments.layouts.empty()) layouts = parse_layouts(arguments.layouts);
  const GpuList list = list_gpus();
  std::vector<std::string> gpu_names;
  for (const GpuList::Gpu& gpu : list.gpus) gpu_names.push_back(gpu.name);
  const RankEnvironment ranks = detect_ranks();
  std::string no_nccl;
  const std::string nccl = nccl_version(no_nccl);
  std::vector<std::string> backends{"shm", "tcp"};
  if (!mpi_library().empty()) backends.push_back("mpi");
  if (!nccl.empty() && !list.gpus.empty()) backends.push_back("nccl");
  const int local_ranks = ranks_to_bind(ranks, list);
  const Binding binding = plan_binding(binding_request(ranks, local_ranks, 0, !list.gpus.empty()));
  std::vector<std::string> cores;
  for (const CoreList& each : binding.cores) cores.push_back(core_text(each));
  struct sysinfo memory{};
  sysinfo(&memory);
  ordered_json report = {{"processor", create_cpu_device()->description()},
                         {"cores", available_cores()},
                         {"memory_bytes", static_cast<std::uint64_t>(memory.totalram) * memory.mem_unit},
                         {"instructions", ops::instruction_set()},
                         {"gpus", gpu_names},
                         {"launch",
                          {{"launcher", rank_source_name(ranks.source)},
                           {"rank", ranks.rank},
                           {"size", ranks.size},
                           {"local_rank", ranks.local_rank},
                           {"local_size", ranks.local_size}}},
                         {"binding", {{"local_ranks", local_ranks}, {"cores", cores}, {"reason", binding.reason}}},
                         {"libraries", {{"oneDNN", ops::onednn_version()}, {"MPI", mpi_library()}, {"NCCL", nccl}}},
                         {"backends", backends},
                         {"copy_gbs", copy_bandwidth()},
                         {"all_reduce_busbw_gbs", all_reduce_bandwidth()}};
  for (const ParallelLayout& layout : layouts)
    report["layouts"].push_back({{"layout", layout.text()}, {"ranks", layout.ranks()}, {"grid", rank_grid(mesh_of(layout))}});
  if (arguments.json) {
    fmt::print("{}\n", dump_json(report));
    return 0;
  }
  fmt::print("processor     {} ({} cores usable, {})\n", report["processor"].get<std::string>(), report["cores"].get<int>(),
             report["instructions"].get<std::string>());
  fmt::print("memory        {:.1f} GB\n", static_cast<double>(report["memory_bytes"].get<std::uint64_t>()) / 1e9);
  if (list.gpus.empty()) fmt::print("GPUs          none: {}\n", list.why_none);
  for (const GpuList::Gpu& gpu : list.gpus) fmt::print("GPU {:<9} {}\n", gpu.number, gpu.name);
  fmt::print("launch        {}, rank {} of {}, {} of {} on this machine\n", rank_source_name(ranks.source), ranks.rank, ranks.size,
             ranks.local_rank, ranks.local_size);
  fmt::print("cores         of {} ranks here: {}\n", local_ranks,
             cores.empty() ? binding.reason : fmt::format("{} ({})", fmt::join(cores, " | "), binding.reason));
  fmt::print("libraries     oneDNN {}\n", report["libraries"]["oneDNN"].get<std::string>());
  fmt::print("MPI           {}\n", mpi_library().empty() ? "none: this build was made without libopenmpi-dev or libmpich-dev"
                                                         : mpi_library() + " (ranks started by its mpirun)");
  fmt::print("NCCL          {}\n", nccl.empty() ? "none: " + no_nccl : nccl);
  fmt::print("backends      {}\n", fmt::join(backends, ", "));
  fmt::print("copy          {:.1f} GB/s read + written, 1 thread\n", report["copy_gbs"].get<double>());
  fmt::print("all-reduce    {:.2f} GB/s bus bandwidth, 16 MB, 2 ranks, shm\n", report["all_reduce_busbw_gbs"].get<double>());
  for (const ParallelLayout& layout : layouts)
    fmt::print("layout        {}: {} {}\n", layout.text(), layout.ranks(), rank_grid(mesh_of(layout)));
  return 0;
}

}  // namespace baleen::cli
