#include "faults/fault_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "checkpoint/reader.h"
#include "support/shared_memory_files.h"

namespace baleen::testing {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::vector<FaultLayout> fault_layouts() {
  return {{"Zero3", {"--set", "parallelism.zero=3", "--set", "training.micro_batch_size=2"}},
          {"TensorPipeline", {"--set", "parallelism.tensor=2", "--set", "parallelism.pipeline=2"}}};
}

bool gone(pid_t process) {
  const std::string status = read_text("/proc/" + std::to_string(process) + "/stat");
  return status.empty() || status.find(") Z") != std::string::npos;
}

void FaultTest::SetUp() {
  TrainingFixture::SetUp();
  segments_ = shared_memory_files();
}

std::vector<std::string> FaultTest::with_ranks(const std::vector<std::string>& more) const {
  std::vector<std::string> settings{"--ranks", "4", "--set", "fault.max_restarts=0", "--set", "metrics.tensorboard=false"};
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::vector<pid_t> FaultTest::ranks_of(const Command& command) const {
  std::vector<pid_t> ranks;
  for (int i = 0; i < 30'000 && ranks.size() < 4; ++i) {
    ranks = command.children();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(ranks.size(), 4u);
  return ranks;
}

FaultTest::Course FaultTest::follow(Command& command, const std::vector<pid_t>& ranks, const std::vector<pid_t>& victims,
                                    std::chrono::seconds limit) {
  const auto fault = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - fault).count(); };
  Course course;
  const auto noticed = [&] {
    return !command.running() || std::any_of(ranks.begin(), ranks.end(), [&](pid_t rank) {
      return std::find(victims.begin(), victims.end(), rank) == victims.end() && gone(rank);
    });
  };
  while (!noticed() && seconds() < static_cast<double>(limit.count())) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  course.noticed = seconds();
  course.result = command.wait(limit);
  course.gone = seconds();
  for (const pid_t rank : ranks) EXPECT_TRUE(gone(rank)) << rank;
  EXPECT_EQ(shared_memory_files(), segments_);
  return course;
}

void FaultTest::print(const char* fault, const Course& course, const std::string& lost) const {
  std::printf("| %s | %s | %.1f | %.1f | %d | %s |\n", fault, GetParam().name, course.noticed, course.gone, course.result.exit_code,
              lost.c_str());
}

std::pair<std::string, std::string> FaultTest::own_weights(const std::string& run, const std::string& step, int rank,
                                                           const std::string& parameter) const {
  const fs::path directory = fs::path(folder / run) / "checkpoints" / step;
  char file[64];
  std::snprintf(file, sizeof file, "model_%05d-of-00004.safetensors", rank);
  if (!fs::exists(directory / file)) std::snprintf(file, sizeof file, "model_%05d-of-00002.safetensors", rank);
  const checkpoint::SafetensorsFile shard(directory / file);
  for (const checkpoint::StoredTensor& tensor : shard.tensors()) {
    if (tensor.name.find(parameter) == std::string::npos || tensor.elements() < 32) continue;
    const auto data = shard.data(tensor);
    const std::size_t begin = data.size() / 2 / 64 * 64;
    return {std::string(reinterpret_cast<const char*>(data.data()) + (begin + 64 <= data.size() ? begin : 0), 64), tensor.name};
  }
  ADD_FAILURE() << "no " << parameter << " in " << file;
  return {};
}

namespace {

// Of memory that ranks share, the pages that this process has touched (proc(5), pagemap): a sparse region is not read as a whole.
std::vector<std::pair<std::uint64_t, std::uint64_t>> touched(const std::string& folder, std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint64_t page = 4096, present = std::uint64_t{1} << 63;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  std::vector<std::uint64_t> entries((end - begin) / page);
  std::ifstream pagemap(folder + "/pagemap", std::ios::binary);
  pagemap.seekg(static_cast<std::streamoff>(begin / page * sizeof entries[0]));
  pagemap.read(reinterpret_cast<char*>(entries.data()), static_cast<std::streamsize>(entries.size() * sizeof entries[0]));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if ((entries[i] & present) == 0) continue;
    const std::uint64_t at = begin + i * page;
    if (!ranges.empty() && ranges.back().second == at)
      ranges.back().second += page;
    else
      ranges.emplace_back(at, at + page);
  }
  return ranges;
}

}  // namespace

int change_memory(const std::vector<pid_t>& ranks, int rank, const std::string& before, const std::string& after) {
  const pid_t process = ranks[static_cast<std::size_t>(rank)];
  const std::string folder = "/proc/" + std::to_string(process);
  std::istringstream maps(read_text(folder + "/maps"));
  const int memory = open((folder + "/mem").c_str(), O_RDWR);
  if (memory < 0) return -1;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    char mode[8] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, mode) != 3) continue;
    if (std::string(mode) == "rw-p") ranges.emplace_back(begin, end);
    if (std::string(mode) != "rw-s") continue;
    // The heap that ranks share: of it the part that is this rank's own.
    constexpr unsigned long least_heap = 64ul << 30;
    const unsigned long part = (end - begin) / ranks.size();
    if (part >= least_heap) begin += static_cast<unsigned long>(rank) * part, end = begin + part;
    for (const auto& range : touched(folder, begin, end)) ranges.push_back(range);
  }
  int places = 0;
  for (const auto& [begin, end] : ranges) {
    std::string content(end - begin, '\0');
    const ssize_t got = pread(memory, content.data(), content.size(), static_cast<off_t>(begin));
    if (got <= 0) continue;
    content.resize(static_cast<std::size_t>(got));
    for (std::size_t at = content.find(before); at != std::string::npos; at = content.find(before, at + before.size()))
      places += pwrite(memory, after.data(), after.size(), static_cast<off_t>(begin + at)) == static_cast<ssize_t>(after.size()) ? 1 : 0;
  }
  close(memory);
  return places;
}

}  // namespace baleen::testing
