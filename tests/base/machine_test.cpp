#include "base/machine.h"

#include <gtest/gtest.h>

#include <string>

#include "support/command.h"
#include "support/paths.h"

namespace baleen {
namespace {

using testing::TemporaryFolder;

class AvailableMemory : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const auto file = folder_.path() / path;
    std::filesystem::create_directories(file.parent_path());
    testing::write_text(file.string(), text);
  }
  TemporaryFolder folder_;
};

TEST_F(AvailableMemory, IsWhatTheMachineHas) {
  EXPECT_EQ(available_memory(folder_.path()), std::uint64_t{1} << 63);
  write("proc/meminfo", "MemTotal:  1000 kB\nMemAvailable:    600 kB\nSwapTotal: 5 kB\n");
  EXPECT_EQ(available_memory(folder_.path()), 600u * 1024);
}

TEST_F(AvailableMemory, IsBoundedByEachGroupAround) {
  write("proc/meminfo", "MemAvailable: 100000 kB\n");
  write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.current", "1000\n");
  EXPECT_EQ(available_memory(folder_.path()), 100000u * 1024);
  write("sys/fs/cgroup/slurm/job_7/memory.max", "50000\n");
  write("sys/fs/cgroup/slurm/job_7/memory.current", "20000\n");
  EXPECT_EQ(available_memory(folder_.path()), 30000u);
  write("sys/fs/cgroup/memory.max", "21000\n");  // as in a container
  write("sys/fs/cgroup/memory.current", "20000\n");
  EXPECT_EQ(available_memory(folder_.path()), 1000u);
  write("sys/fs/cgroup/memory.current", "30000\n");
  EXPECT_EQ(available_memory(folder_.path()), 0u);
}

TEST_F(AvailableMemory, KnowsTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "5:cpu,memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2000\n");
  EXPECT_EQ(available_memory(folder_.path()), 7000u);
}

TEST(Machine, IsOne) {
  EXPECT_EQ(machine_identity(), machine_identity());
  EXPECT_LT(available_memory(), std::uint64_t{1} << 63);
}

}  // namespace
}  // namespace baleen
