// Which processor cores a rank keeps to. Ranks of one machine get cores of their own, near to each other and, where the rank has a GPU,
// near to that: memory that a rank touches first then lies beside its cores and its GPU. The shape of the machine is read by hwloc
// (Broquedis et al., "hwloc: a generic framework for managing hardware affinities in HPC applications", PDP 2010).
#pragma once

#include <string>
#include <vector>

namespace baleen {

using CoreList = std::vector<int>;  // operating system's numbers, ascending

struct BindingRequest {
  int local_ranks = 1;
  int threads = 0;  // that a rank will run; 0: as many as it gets cores
  // By local rank: the GPU's address on the PCI bus, such as "0000:1b:00.0"; empty lists and strings: no GPU.
  std::vector<std::string> gpus = {};
  // The launcher that started the ranks binds them itself when it is told to (mpirun --bind-to, srun --cpu-bind): what it chose stays.
  bool launcher_may_bind = false;
};

struct Binding {
  std::vector<CoreList> cores;  // by local rank; empty: everybody runs where the system likes
  std::string reason;           // for people: why cores is empty, or what they follow
};

// The same on every rank of the machine that asks with the same words. Cores are those that this process may use: taskset, cgroups and
// containers count. $BALEEN_BINDING = none leaves everything alone, auto or unset does not; another value: Error(bad_config).
Binding plan_binding(const BindingRequest& request);

// How many of the `own` cores that a rank may use are its share, with `local_ranks` ranks on the machine: all of them where a launcher that
// has `launcher` cores itself (0: not known) has given each rank its own, as mpirun --bind-to does, otherwise an equal part. At least 1.
int share_of_cores(int own, int launcher, int local_ranks);

// The calling thread, and threads it starts from now on, keep to `cores`. Failing costs speed and nothing else: a warning.
void bind_to(const CoreList& cores);

// "0-3,8".
std::string core_text(const CoreList& cores);

}  // namespace baleen
