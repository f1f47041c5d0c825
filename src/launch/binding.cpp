#include "launch/binding.h"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/log.h"

namespace baleen {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_t set) const { hwloc_bitmap_free(set); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) return;
    // Devices are asked for in /sys (near_to): looking for them would load every vendor's library.
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE);
    loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  bool loaded() const { return loaded_; }
  hwloc_topology_t get() const { return topology_; }
  hwloc_const_cpuset_t allowed() const { return hwloc_topology_get_allowed_cpuset(topology_); }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_ = false;
};

// The cores that this process may run on.
Bitmap own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return nullptr;
  Bitmap cores(hwloc_bitmap_alloc());
  for (unsigned core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) hwloc_bitmap_set(cores.get(), core);
  return cores;
}

CoreList list_of(hwloc_const_bitmap_t set) {
  CoreList cores;
  for (int core = hwloc_bitmap_first(set); core >= 0; core = hwloc_bitmap_next(set, core)) cores.push_back(core);
  return cores;
}

// Those of `all` that the system calls local to a device; nullptr where it does not say, or where they are none.
Bitmap near_to(const std::string& address, hwloc_const_bitmap_t all) {
  std::string name = address, text;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::getline(std::ifstream("/sys/bus/pci/devices/" + name + "/local_cpulist"), text);
  Bitmap cores(hwloc_bitmap_alloc());
  if (address.empty() || text.empty() || hwloc_bitmap_list_sscanf(cores.get(), text.c_str()) != 0) return nullptr;
  hwloc_bitmap_and(cores.get(), cores.get(), all);
  return hwloc_bitmap_iszero(cores.get()) ? nullptr : std::move(cores);
}

// `cores` in as many parts as there are places in `to`, along the machine's own borders; false where they are too few.
bool divide(const Topology& topology, hwloc_const_bitmap_t cores, const std::vector<CoreList*>& to) {
  if (hwloc_bitmap_weight(cores) < static_cast<int>(to.size())) return false;
  hwloc_topology_t part = nullptr;
  if (hwloc_topology_dup(&part, topology.get()) != 0) return false;
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> owner(part, hwloc_topology_destroy);
  if (hwloc_topology_restrict(part, cores, 0) != 0) return false;
  std::vector<hwloc_cpuset_t> sets(to.size());
  hwloc_obj_t machine = hwloc_get_root_obj(part);
  if (hwloc_distrib(part, &machine, 1, sets.data(), static_cast<unsigned>(sets.size()), HWLOC_OBJ_PU, 0) != 0) return false;
  bool apart = true;
  const Bitmap taken(hwloc_bitmap_alloc());
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const Bitmap set(sets[i]);
    *to[i] = list_of(set.get());
    apart = apart && !hwloc_bitmap_iszero(set.get()) && !hwloc_bitmap_intersects(taken.get(), set.get());
    hwloc_bitmap_or(taken.get(), taken.get(), set.get());
  }
  return apart;
}

struct Group {
  Bitmap cores;
  std::vector<CoreList*> members;
};

// Ranks whose GPUs are near to the same cores share those. Empty where some rank has no GPU or the system does not say where it is.
std::vector<Group> groups_by_gpu(const BindingRequest& request, hwloc_const_bitmap_t all, std::vector<CoreList>& places) {
  std::vector<Group> groups;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    Bitmap near = rank < request.gpus.size() ? near_to(request.gpus[rank], all) : nullptr;
    if (near == nullptr) return {};
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return hwloc_bitmap_isequal(g.cores.get(), near.get()) != 0; });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{std::move(near), {}});
    group->members.push_back(&places[rank]);
  }
  for (std::size_t a = 0; a < groups.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (hwloc_bitmap_intersects(groups[a].cores.get(), groups[b].cores.get())) return {};
  return groups;
}

bool switched_off() {
  const char* value = std::getenv("BALEEN_BINDING");
  if (value == nullptr || std::strcmp(value, "auto") == 0) return false;
  if (std::strcmp(value, "none") == 0) return true;
  throw Error(ExitCode::bad_config, fmt::format("BALEEN_BINDING is '{}'", value), "environment", "use auto or none, or unset it");
}

}  // namespace

Binding plan_binding(const BindingRequest& request) {
  BALEEN_CHECK(request.local_ranks >= 1, request.local_ranks);
  if (switched_off()) return {{}, "left alone: BALEEN_BINDING is none"};
  const bool with_gpu = std::any_of(request.gpus.begin(), request.gpus.end(), [](const std::string& gpu) { return !gpu.empty(); });
  if (request.local_ranks == 1 && !with_gpu) return {{}, "left to the system: one rank without a GPU"};
  const Topology topology;
  const Bitmap all = own_cores();
  if (!topology.loaded() || all == nullptr) return {{}, "left to the system, which does not tell the machine's shape"};
  hwloc_bitmap_and(all.get(), all.get(), topology.allowed());
  if (request.launcher_may_bind && !hwloc_bitmap_isequal(all.get(), topology.allowed()))
    return {{}, "left as the launcher has bound the rank"};

  Binding out;
  out.cores.resize(static_cast<std::size_t>(request.local_ranks));
  std::vector<Group> groups = groups_by_gpu(request, all.get(), out.cores);
  out.reason = groups.empty() ? "" : "near the rank's GPU";
  if (groups.empty()) {
    if (request.local_ranks == 1) return {{}, "left to the system, which does not say what is near the GPU"};
    groups.push_back({Bitmap(hwloc_bitmap_dup(all.get())), {}});
    for (CoreList& cores : out.cores) groups.front().members.push_back(&cores);
    out.reason = "each rank its own";
  }
  for (const Group& group : groups)
    if (!divide(topology, group.cores.get(), group.members))
      return {{}, fmt::format("left to the system: {} ranks and {} cores", request.local_ranks, hwloc_bitmap_weight(all.get()))};
  for (const CoreList& cores : out.cores)
    if (request.threads > static_cast<int>(cores.size()))
      return {{}, fmt::format("left to the system: {} threads a rank and {} cores for it", request.threads, cores.size())};
  return out;
}

int share_of_cores(int own, int launcher, int local_ranks) {
  const bool bound = own < launcher && static_cast<std::int64_t>(own) * local_ranks <= launcher;
  return bound ? own : std::max(1, own / local_ranks);
}

void bind_to(const CoreList& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores)
    if (core < CPU_SETSIZE) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) log::warning("cannot keep to cores {}: {}", core_text(cores), std::strerror(errno));
}

std::string core_text(const CoreList& cores) {
  std::string text;
  for (std::size_t first = 0; first < cores.size();) {
    std::size_t last = first;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cores[first]);
    if (last > first) text += fmt::format("-{}", cores[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace baleen
