#include "support/shared_memory_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace baleen::testing {

std::set<std::string> shared_memory_files() {
  constexpr std::array<std::string_view, 2> of_mpi{"vader_segment.", "mpich_"};
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (std::none_of(of_mpi.begin(), of_mpi.end(), [&](std::string_view prefix) { return name.starts_with(prefix); })) out.insert(name);
  }
  return out;
}

}  // namespace baleen::testing
