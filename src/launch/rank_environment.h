// Which rank of how many is this process, and who started it.
#pragma once

#include <functional>
#include <string>

namespace baleen {

enum class RankSource { single, baleen, torchrun, open_mpi, mpich, slurm };
std::string rank_source_name(RankSource source);

struct RankEnvironment {
  RankSource source = RankSource::single;
  int rank = 0, size = 1;              // in the job
  int local_rank = 0, local_size = 1;  // on this machine; local_size 0: not known, and local_rank then `rank` if nothing says
  int cores_per_rank = 0;              // that the launcher promises each rank (srun --cpus-per-task); 0: nothing is known
  int region_descriptor = -1;          // baleen's launcher: the inherited shared memory
  int launcher_pid = 0;                // baleen's launcher
  int progress_descriptor = -1;        // baleen's launcher, where it watches: the inherited ProgressBoard
  int restarts = 0;                    // baleen's launcher and torchrun: how often the ranks of this job have been started again
  // A name that all ranks of this job share and no other job of this user has. With baleen's launcher restarts keep it; with others they
  // get another.
  std::string job;
};

// Looks a variable up: nullptr when unset. For tests.
using EnvironmentLookup = std::function<const char*(const char*)>;

// baleen's own launcher comes first, then torchrun, Open MPI, MPICH, Slurm (a step of srun with several
// tasks; neither a batch script nor a shell under srun is a rank). With none of
// them: one rank. Throws Error(bad_config) naming the variable when one is missing, malformed or contradicts another.
RankEnvironment detect_ranks();
RankEnvironment detect_ranks(const EnvironmentLookup& lookup, int parent_pid);

// Names of the variables baleen's launcher hands to its ranks.
inline constexpr const char* rank_variable = "BALEEN_RANK";
inline constexpr const char* size_variable = "BALEEN_WORLD_SIZE";
inline constexpr const char* region_variable = "BALEEN_REGION_DESCRIPTOR";
inline constexpr const char* launcher_variable = "BALEEN_LAUNCHER_PID";
inline constexpr const char* progress_variable = "BALEEN_PROGRESS_DESCRIPTOR";
inline constexpr const char* job_variable = "BALEEN_JOB";
inline constexpr const char* restarts_variable = "BALEEN_RESTARTS";

}  // namespace baleen
