// Real faults on runs of four ranks: signals, limits, damaged files, bytes changed in a rank's memory. The program has no switch for any.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/training_fixture.h"

namespace baleen::testing {

struct FaultLayout {
  const char* name;
  std::vector<std::string> settings;  // of four ranks
};

inline void PrintTo(const FaultLayout& layout, std::ostream* out) {
  *out << layout.name;
}
std::vector<FaultLayout> fault_layouts();  // ZeRO-3; tp = 2 × pp = 2

class FaultTest : public TrainingFixture, public ::testing::WithParamInterface<FaultLayout> {
 protected:
  void SetUp() override;

  // Four ranks in the layout at hand, no restarts unless `more` says so.
  std::vector<std::string> with_ranks(const std::vector<std::string>& more) const;
  // Started, and its four ranks once they are there.
  std::vector<pid_t> ranks_of(const Command& command) const;

  struct Course {
    CommandResult result;
    double noticed = 0, gone = 0;  // seconds since `fault`: until the first other process has ended, and until all have
  };
  // Follows a command to its end. `victims` end because of the fault itself. Everything must be gone, no segment may be left.
  Course follow(Command& command, const std::vector<pid_t>& ranks, const std::vector<pid_t>& victims, std::chrono::seconds limit);
  // A line of docs/operations.md's table.
  void print(const char* fault, const Course& course, const std::string& lost = "nothing") const;

  // 64 bytes from the middle of a weight that this rank alone keeps, from its file of the run's checkpoint; the parameter's name.
  std::pair<std::string, std::string> own_weights(const std::string& run, const std::string& step, int rank,
                                                  const std::string& parameter) const;

 private:
  std::set<std::string> segments_;
};

// Replaces `before` by `after`, of the same length, wherever the process of a rank has it in memory of its own. The number of places; -1
// where that memory may not be written.
int change_memory(const std::vector<pid_t>& ranks, int rank, const std::string& before, const std::string& after);

bool gone(pid_t process);

}  // namespace baleen::testing
