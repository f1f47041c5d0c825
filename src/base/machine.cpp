#include "base/machine.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/hash.h"

namespace baleen {
namespace {

namespace fs = std::filesystem;

// What the control groups from `group` up to the whole hierarchy leave. A group whose files are not there has no limit.
std::uint64_t left_by_groups(const fs::path& hierarchy, std::string group, const char* limit_file, const char* used_file) {
  std::uint64_t least = std::uint64_t{1} << 63;
  for (;;) {
    const fs::path folder = hierarchy / fs::path(group).relative_path();
    std::uint64_t limit = 0, used = 0;
    if (std::ifstream(folder / limit_file) >> limit && std::ifstream(folder / used_file) >> used)  // "max" is no number
      least = std::min(least, limit > used ? limit - used : 0);
    if (group.size() <= 1) return least;
    group.erase(std::max<std::size_t>(group.rfind('/'), 0));
    if (group.empty()) group = "/";
  }
}

}  // namespace

std::uint64_t machine_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return hash_bytes(boot.data(), boot.size());
}

std::uint64_t available_memory() {
  return available_memory("/");
}

std::uint64_t available_memory(const fs::path& root) {
  std::uint64_t least = std::uint64_t{1} << 63;
  std::ifstream memory(root / "proc/meminfo");
  for (std::string line; std::getline(memory, line);)
    if (line.starts_with("MemAvailable:")) least = std::min<std::uint64_t>(least, std::stoull(line.substr(line.find(':') + 1)) * 1024);
  // Lines are ID:CONTROLLERS:PATH; version 2 has no controllers. In a container the path may be /, and the limit at the top.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",", group = line.substr(second + 1);
    if (controllers == ",,")
      least = std::min(least, left_by_groups(root / "sys/fs/cgroup", group, "memory.max", "memory.current"));
    else if (controllers.find(",memory,") != std::string::npos)
      least = std::min(least, left_by_groups(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes"));
  }
  return least;
}

}  // namespace baleen
