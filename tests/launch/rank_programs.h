// A test executable that can be its own ranks: launch_ranks() starts this same program, and `--as-rank NAME` makes it run one of the named
// programs below main() instead of the tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "launch/launcher.h"

namespace baleen::testing {

using RankPrograms = std::map<std::string, std::function<int()>>;

// What main() does. A program's Error becomes its exit code, as in cli/main.cpp.
inline int run_tests_or_rank(int argc, char** argv, const RankPrograms& programs) {
  if (argc == 3 && std::string(argv[1]) == "--as-rank") {
    try {
      return programs.at(argv[2])();
    } catch (const Error& error) {
      if (error.code() != ExitCode::rank_failed) std::fprintf(stderr, "%s\n", error.what());
      return static_cast<int>(error.code());
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

inline LaunchOptions ranks_running(const std::string& program, int ranks) {
  LaunchOptions options;
  options.ranks = ranks;
  options.arguments = {"test-rank", "--as-rank", program};
  return options;
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

// Those that a program started from here would get anyway.
inline std::size_t inherited_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int flags = fcntl(std::stoi(entry.path().filename().string()), F_GETFD);
    count += flags >= 0 && (flags & FD_CLOEXEC) == 0;
  }
  return count;
}

}  // namespace baleen::testing
