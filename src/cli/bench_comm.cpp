// baleen bench comm
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/ranks.h"
#include "comm/benchmark.h"
#include "comm/gpu_communicator.h"
#include "device/gpu.h"

namespace baleen::cli {
namespace {

void check_backend(const std::string& backend) {
  if (backend == "shm" || backend == "mpi" || backend == "tcp") return;
  if (backend != "nccl")
    throw Error(ExitCode::bad_config, fmt::format("no backend named '{}'", backend), "--backend",
                "use shm, mpi (under mpirun), tcp (under torchrun) or nccl");
  std::string why;
  if (nccl_version(why).empty())
    throw Error(ExitCode::bad_config, "backend 'nccl' cannot be used: " + why, "--backend", "install NCCL, or use --backend shm");
  const GpuList list = list_gpus();
  if (list.gpus.empty())
    throw Error(ExitCode::bad_config, "backend 'nccl' connects GPUs, and there are none: " + list.why_none, "--backend",
                "use --backend shm");
}

nlohmann::ordered_json as_json(const BenchCommArguments& arguments, int ranks, const std::vector<BenchmarkRow>& rows, double copied) {
  nlohmann::ordered_json out = {{"op", arguments.op},
                                {"backend", arguments.backend},
                                {"ranks", ranks},
                                {"rows", nlohmann::ordered_json::array()},
                                {"in_place", arguments.in_place},
                                {"copy_gbs", copied}};
  for (const BenchmarkRow& row : rows)
    out["rows"].push_back({{"bytes", row.bytes},
                           {"time_us", row.time_us},
                           {"algbw_gbs", row.algbw_gbs},
                           {"busbw_gbs", row.busbw_gbs},
                           {"wrong", row.wrong},
                           {"memory_gbs", row.memory_gbs}});
  return out;
}

// `copied`: what the processors copy, or 0 where the buffers are a GPU's.
void print_row(const BenchmarkRow& row, double copied) {
  fmt::print("{:>12} {:>12} {:>8} {:>12.2f} {:>14.3f} {:>14.3f} {:>8}", row.bytes, row.bytes / sizeof(float), "fp32", row.time_us,
             row.algbw_gbs, row.busbw_gbs, row.wrong);
  if (copied > 0) fmt::print(" {:>9.2f}", row.memory_gbs / copied);
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

int run(const BenchCommArguments& arguments, const std::vector<std::string>& command_line) {
  const RankEnvironment environment = detect_ranks();
  const Collective collective = parse_collective(arguments.op);
  check_backend(arguments.backend);
  if (arguments.no_peer_copies && arguments.backend != "nccl")
    throw Error(ExitCode::bad_config, fmt::format("backend {} has no copies between GPUs", arguments.backend), "--no-peer-copies",
                "leave it out, or use --backend nccl");
  if (arguments.in_place && (collective == Collective::send_recv || collective == Collective::broadcast))
    throw Error(ExitCode::bad_config, fmt::format("{} has no form in place and one that is not", arguments.op), "--in-place",
                "leave it out");
  const std::vector<std::size_t> sizes = parse_size_range(arguments.sizes);
  const int ranks = rank_count(environment, arguments.ranks, 1);
  if (collective == Collective::send_recv && ranks == 1)
    throw Error(ExitCode::bad_config, "send_recv needs two ranks or more", "--ranks", "for example --ranks 2");
  RankedCommand command;
  command.ranks = ranks;
  command.threads = 1;
  command.backend = arguments.backend;
  command.backend_key = "--backend ";
  command.gpu = arguments.backend == "nccl";
  return run_on_ranks(environment, command, command_line, [&](World& world) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    std::unique_ptr<Device> gpu, cpu;  // outlive the communicator
    auto axis = world.create_communicator(all, "world");
    if (arguments.backend == "nccl") {
      gpu = create_gpu_device(list_gpus().of(world.local_rank()).number);
      axis = for_gpu_buffers(std::move(axis), *gpu, {"nccl", world.gpu_timeout(), !arguments.no_peer_copies});
    } else {
      cpu = create_cpu_device(world.shared_memory());  // the memory that training has
    }
    const double copied = gpu == nullptr ? copy_gbs(*axis) : 0;
    const bool table = world.rank() == 0 && !arguments.json;
    if (table)
      fmt::print("# {} over {} ranks, backend {}; {}{}\n{:>12} {:>12} {:>8} {:>12} {:>14} {:>14} {:>8}{}\n", arguments.op, ranks,
                 arguments.backend, arguments.in_place ? "in place" : "out of place",
                 copied > 0 ? fmt::format("; memory copied by all ranks at once: {:.1f} GB/s, read and written", copied) : "", "# size (B)",
                 "elements", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "wrong", copied > 0 ? " of memory" : "");
    const std::vector<BenchmarkRow> rows = benchmark_collective(
        *axis, collective, sizes,
        table ? [copied](const BenchmarkRow& row) { print_row(row, copied); } : std::function<void(const BenchmarkRow&)>(),
        {gpu != nullptr ? gpu.get() : cpu.get(), arguments.in_place});
    if (world.rank() == 0 && arguments.json) fmt::print("{}\n", dump_json(as_json(arguments, ranks, rows, copied)));
    bool right = true;
    for (const BenchmarkRow& row : rows) right &= row.wrong == 0;
    return static_cast<int>(right ? ExitCode::done : ExitCode::check_failed);
  });
}

}  // namespace baleen::cli
