#include "launch/rank_environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace baleen {
namespace {

constexpr int largest_world = 1 << 20;

[[noreturn]] void refuse(const std::string& what, const std::string& variable, const std::string& remedy) {
  throw Error(ExitCode::bad_config, what, "environment variable " + variable, remedy);
}

class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const std::string& name) const {
    const char* value = lookup_(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  }
  bool has(const std::string& name) const { return text(name).has_value(); }

  // A decimal number in [low, high]; anything else, or nothing at all, is refused by name.
  int number(const std::string& name, int low, int high, const std::string& because) const {
    const auto value = text(name);
    if (!value) refuse(name + " is not set although " + because, name, "set it, or unset the launcher's other variables");
    int parsed = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), parsed);
    if (error != std::errc() || end != value->data() + value->size() || value->empty())
      refuse(name + " = \"" + *value + "\" is not a whole number", name, "start the ranks with one launcher and leave its variables alone");
    if (parsed < low || parsed > high)
      refuse(name + " = " + *value + " is outside " + std::to_string(low) + " to " + std::to_string(high) + " (" + because + ")", name,
             "start the ranks with one launcher and leave its variables alone");
    return parsed;
  }

 private:
  const EnvironmentLookup& lookup_;
};

// rank and size under these names; the rank must lie below the size.
void read_rank(const Variables& variables, const std::string& rank, const std::string& size, RankEnvironment& out) {
  out.size = variables.number(size, 1, largest_world, rank + " is set");
  out.rank = variables.number(rank, 0, out.size - 1, size + " is " + std::to_string(out.size));
}

void read_local(const Variables& variables, const std::string& rank, const std::string& size, RankEnvironment& out) {
  out.local_size = variables.has(size) ? variables.number(size, 1, out.size, "the job has " + std::to_string(out.size) + " ranks") : 0;
  const int limit = out.local_size > 0 ? out.local_size : out.size;
  out.local_rank = variables.has(rank)  ? variables.number(rank, 0, limit - 1, std::to_string(limit) + " ranks are here")
                   : out.local_size > 0 ? 0
                                        : out.rank;
}

RankEnvironment from_baleen(const Variables& variables, int parent_pid) {
  RankEnvironment out;
  out.source = RankSource::baleen;
  read_rank(variables, rank_variable, size_variable, out);
  out.local_rank = out.rank;
  out.local_size = out.size;
  out.region_descriptor = variables.number(region_variable, 0, 1 << 30, "BALEEN_RANK is set");
  out.launcher_pid = variables.number(launcher_variable, 1, 1 << 30, "BALEEN_RANK is set");
  if (out.launcher_pid != parent_pid)
    refuse("BALEEN_LAUNCHER_PID names process " + std::to_string(out.launcher_pid) + ", which did not start this one", launcher_variable,
           "these variables are for baleen's own ranks: unset BALEEN_RANK and start with `--ranks N`");
  out.job = variables.text(job_variable).value_or("");
  if (variables.has(progress_variable)) out.progress_descriptor = variables.number(progress_variable, 0, 1 << 30, "");
  if (variables.has(restarts_variable)) out.restarts = variables.number(restarts_variable, 0, 1 << 30, "");
  return out;
}

RankEnvironment from_torchrun(const Variables& variables) {
  RankEnvironment out;
  out.source = RankSource::torchrun;
  read_rank(variables, "RANK", "WORLD_SIZE", out);
  if (variables.has("TORCHELASTIC_RESTART_COUNT")) out.restarts = variables.number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, "");
  read_local(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE", out);
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"}) out.job += variables.text(name).value_or("") + "|";
  // A restart of torchrun may keep address and port; its count keeps the generations apart. Every machine's agent counts for itself, and
  // one that came later counts less: ranks of several machines would not know each other by it.
  if (out.local_size == out.size) out.job += variables.text("TORCHELASTIC_RESTART_COUNT").value_or("") + "|";
  if (out.size > 1) {
    variables.number("MASTER_PORT", 1, 65535, "WORLD_SIZE is " + std::to_string(out.size));
    if (!variables.has("MASTER_ADDR"))
      refuse("MASTER_ADDR is not set although MASTER_PORT is", "MASTER_ADDR", "start the ranks with torchrun");
  }
  return out;
}

// The job's name where the launcher gives it none. The ranks of one machine share their parent; those of several have other parents and
// share what they meet at.
std::string job_by_place(const Variables& variables, const RankEnvironment& environment, int parent_pid) {
  if (environment.local_size != environment.size && variables.has("MASTER_ADDR") && variables.has("MASTER_PORT"))
    return *variables.text("MASTER_ADDR") + "|" + *variables.text("MASTER_PORT") + "|";
  return "parent " + std::to_string(parent_pid);
}

RankEnvironment from_open_mpi(const Variables& variables, int parent_pid) {
  RankEnvironment out;
  out.source = RankSource::open_mpi;
  read_rank(variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", out);
  read_local(variables, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", out);
  // The names that Open MPI 4 and 5 give a job.
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"})
    if (const auto value = variables.text(name)) out.job += *value + "|";
  if (out.job.empty()) out.job = job_by_place(variables, out, parent_pid);
  return out;
}

// Of Hydra, MPICH's launcher and Intel MPI's.
RankEnvironment from_mpich(const Variables& variables, int parent_pid) {
  RankEnvironment out;
  out.source = RankSource::mpich;
  read_rank(variables, "PMI_RANK", "PMI_SIZE", out);
  read_local(variables, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", out);
  out.job = job_by_place(variables, out, parent_pid);
  return out;
}

// How many tasks Slurm put on node `node`, from its short form "2(x3),1"; 0 when the text does not say.
int tasks_on_node(const std::string& text, int node) {
  std::string_view rest = text;
  while (!rest.empty()) {
    int tasks = 0, repeat = 1;
    auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), tasks);
    if (parsed.ec != std::errc()) return 0;
    rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()));
    if (rest.starts_with("(x")) {
      rest.remove_prefix(2);
      parsed = std::from_chars(rest.data(), rest.data() + rest.size(), repeat);
      if (parsed.ec != std::errc()) return 0;
      rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()));
      if (!rest.starts_with(")")) return 0;
      rest.remove_prefix(1);
    }
    if (node < repeat) return tasks;
    node -= repeat;
    if (rest.starts_with(",")) rest.remove_prefix(1);
  }
  return 0;
}

RankEnvironment from_slurm(const Variables& variables) {
  RankEnvironment out;
  out.source = RankSource::slurm;
  // Inside a job of more tasks, a step's own number.
  read_rank(variables, "SLURM_PROCID", variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", out);
  if (out.size == 1) return RankEnvironment();  // as a shell under `srun --pty` is
  if (variables.has("SLURM_LOCALID"))
    out.local_rank = variables.number("SLURM_LOCALID", 0, out.size - 1, "the step has " + std::to_string(out.size) + " tasks");
  const int nodes = variables.has("SLURM_STEP_NUM_NODES") ? variables.number("SLURM_STEP_NUM_NODES", 1, largest_world, "srun sets it") : 1;
  const int node = variables.has("SLURM_NODEID") ? variables.number("SLURM_NODEID", 0, largest_world, "srun sets it") : 0;
  out.local_size = nodes == 1 ? out.size : tasks_on_node(variables.text("SLURM_STEP_TASKS_PER_NODE").value_or(""), node);
  if (variables.has("SLURM_CPUS_PER_TASK")) out.cores_per_rank = variables.number("SLURM_CPUS_PER_TASK", 1, 1 << 20, "srun sets it");
  out.job = variables.text("SLURM_JOB_ID").value_or("") + "." + variables.text("SLURM_STEP_ID").value_or("");
  return out;
}

}  // namespace

std::string rank_source_name(RankSource source) {
  switch (source) {
    case RankSource::single: return "no launcher";
    case RankSource::baleen: return "baleen --ranks";
    case RankSource::torchrun: return "torchrun";
    case RankSource::open_mpi: return "mpirun (Open MPI)";
    case RankSource::mpich: return "mpirun (MPICH)";
    case RankSource::slurm: return "srun (Slurm)";
  }
  return "?";
}

RankEnvironment detect_ranks() {
  return detect_ranks([](const char* name) { return std::getenv(name); }, static_cast<int>(getppid()));
}

RankEnvironment detect_ranks(const EnvironmentLookup& lookup, int parent_pid) {
  const Variables variables(lookup);
  if (variables.has(rank_variable)) return from_baleen(variables, parent_pid);
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return from_torchrun(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables, parent_pid);
  if (variables.has("PMI_RANK") && variables.has("MPI_LOCALRANKID")) return from_mpich(variables, parent_pid);
  if (variables.has("SLURM_STEP_NODELIST") && variables.has("SLURM_PROCID")) return from_slurm(variables);
  return RankEnvironment();
}

}  // namespace baleen
