#include "cli/ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "comm/connect.h"
#include "comm/mpi/mpi_world.h"
#include "comm/shm/shm_world.h"
#include "device/gpu.h"
#include "launch/launcher.h"
#include "ops/threads.h"

namespace baleen::cli {
namespace {

// What ranks that --ranks starts cannot do is said once, not by every one of them.
void check_own_ranks(const RankedCommand& command) {
  const auto backend = [&](const char* name) { return fmt::format("{}\"{}\"", command.backend_key, name); };
  if (command.backend == "mpi")
    throw Error(ExitCode::bad_config,
                fmt::format("--ranks starts {} ranks itself, and MPI finds only ranks that its own launcher starts", command.ranks),
                backend("mpi"), fmt::format("start with `mpirun -n {} baleen …` and leave --ranks out", command.ranks));
  if (command.backend == "tcp")
    throw Error(ExitCode::bad_config, fmt::format("--ranks starts {} ranks on this machine, where they share memory", command.ranks),
                backend("tcp"),
                fmt::format("use {}; TCP is for ranks that torchrun or srun start, on several machines for example, without --ranks",
                            backend(command.backend_key.starts_with("--") ? "shm" : "auto")));
  if (command.ranks <= max_shm_ranks) return;
  const std::string here = command.backend_key.empty()
                               ? ""
                               : fmt::format(" on this one {} with {} or", mpi_library().empty() ? "by torchrun" : "by mpirun",
                                             backend(mpi_library().empty() ? "tcp" : "mpi"));
  throw Error(ExitCode::bad_config,
              fmt::format("{} ranks on one machine are more than the {} that share memory", command.ranks, max_shm_ranks),
              fmt::format("--ranks {}, given or from the layout", command.ranks),
              fmt::format("use {} ranks or fewer, or start them without --ranks:{} on several machines by torchrun, mpirun or srun",
                          max_shm_ranks, here));
}

// What srun promises a task counts; its parent, Slurm's own, may use cores that the job has not. Other launchers' parents are in the job.
int share_of_cores(const RankEnvironment& environment, int local_ranks) {
  const int own = available_cores();
  if (environment.cores_per_rank > 0) return std::min(environment.cores_per_rank, own);
  const bool others = environment.source != RankSource::single && environment.source != RankSource::baleen;
  return baleen::share_of_cores(own, others && environment.source != RankSource::slurm ? available_cores(::getppid()) : 0, local_ranks);
}

}  // namespace

int rank_count(const RankEnvironment& environment, int given, int fallback) {
  switch (environment.source) {
    case RankSource::single: return given > 0 ? given : fallback;
    case RankSource::baleen: return environment.size;
    default:
      if (given > 0)
        throw Error(
            ExitCode::bad_config,
            fmt::format("--ranks was given, but {} has already started {} ranks", rank_source_name(environment.source), environment.size),
            "--ranks", "leave --ranks out, or start baleen without that launcher");
      return environment.size;
  }
}

std::string other_launcher(const RankEnvironment& environment) {
  const bool own = environment.source == RankSource::single || environment.source == RankSource::baleen;
  return own ? "" : rank_source_name(environment.source);
}

BindingRequest binding_request(const RankEnvironment& environment, int local_ranks, int threads, bool gpu) {
  BindingRequest request;
  request.local_ranks = local_ranks;
  request.threads = threads;
  request.launcher_may_bind = environment.source != RankSource::baleen && environment.source != RankSource::single;
  if (!gpu) return request;
  const GpuList list = list_gpus();
  for (int local = 0; local < local_ranks && !list.gpus.empty(); ++local) request.gpus.push_back(list.of(local).address);
  return request;
}

int run_on_ranks(const RankEnvironment& environment, const RankedCommand& command, const std::vector<std::string>& command_line,
                 const std::function<int(World&)>& body) {
  if (environment.source == RankSource::single && command.ranks > 1) {
    check_own_ranks(command);
    plan_binding({});  // a wrong variable is said once, not by every rank
    LaunchOptions options;
    options.ranks = command.ranks;
    options.arguments = command_line;
    options.threads = command.threads;
    options.graceful_stop = command.graceful_stop;
    if (command.reports_progress) options.progress_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(command.timeout_s * 1000));
    options.max_restarts = command.max_restarts;
    options.latest_checkpoint = command.latest_checkpoint;
    options.restarting = [](const std::string& why) { std::fprintf(stderr, "baleen: %s\n", why.c_str()); };
    const LaunchOutcome outcome = launch_ranks(options);
    if (!outcome.message.empty())
      std::fprintf(stderr, "baleen: %s%s\n",
                   outcome.exit_code == static_cast<int>(ExitCode::stopped) ? "" : "the first failure: ", outcome.message.c_str());
    return outcome.exit_code;
  }
  log::configure(environment.rank, environment.size);
  const int local_ranks = environment.local_size > 0 ? environment.local_size : environment.size;
  // Every rank of this machine its share of the cores, whoever started it.
  const int threads = command.threads > 0 ? command.threads : share_of_cores(environment, local_ranks);
  ops::set_threads(threads);
  if (environment.local_size > 0) {  // else this rank does not know its place on the machine
    const Binding binding = plan_binding(binding_request(environment, local_ranks, threads, command.gpu));
    if (!binding.cores.empty()) bind_to(binding.cores[static_cast<std::size_t>(environment.local_rank)]);
    log::debug("cores: {} ({})", binding.cores.empty() ? "any" : core_text(binding.cores[static_cast<std::size_t>(environment.local_rank)]),
               binding.reason);
  }
  const auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(command.timeout_s * 1000));
  const std::unique_ptr<World> world = connect_world(environment, timeout, command.backend);
  world->set_local_rank(environment.local_rank);
  world->set_peer_copies(command.peer_copies);
  try {
    return body(*world);
  } catch (const Error& error) {
    // With other launchers nobody else tells the peers; a second reason changes nothing.
    world->abort(fmt::format("rank {} failed: {}", environment.rank, error.what_is_wrong()));
    throw;
  } catch (const std::exception& error) {  // no memory, a file system's own
    world->abort(fmt::format("rank {} failed: {}", environment.rank, error.what()));
    throw;
  }
}

}  // namespace baleen::cli
