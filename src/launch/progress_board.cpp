#include "launch/progress_board.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace baleen {

// Written by one process, read by another at any moment: `version` is odd while the rest is being written. Valid when zero-filled.
struct alignas(64) ProgressBoard::Cell {
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> limited;
  std::atomic<std::int64_t> nanoseconds;
  std::atomic<char> action[112];
};

std::shared_ptr<ProgressBoard> ProgressBoard::create(int ranks) {
  BALEEN_CHECK(ranks >= 1, ranks);
  const std::size_t bytes = static_cast<std::size_t>(ranks) * sizeof(Cell);
  Descriptor file(memfd_create("baleen progress", MFD_CLOEXEC));
  void* memory = MAP_FAILED;
  if (file.valid() && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw Error(ExitCode::out_of_memory, std::string("no memory to watch the ranks in: ") + std::strerror(errno));
  return std::shared_ptr<ProgressBoard>(new ProgressBoard(std::move(file), static_cast<Cell*>(memory), ranks));
}

std::shared_ptr<ProgressBoard> ProgressBoard::attach(Descriptor file, int ranks) {
  const std::size_t bytes = static_cast<std::size_t>(ranks) * sizeof(Cell);
  struct stat status{};
  void* memory = MAP_FAILED;
  if (fstat(file.get(), &status) == 0 && static_cast<std::size_t>(status.st_size) == bytes)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED)
    throw Error(ExitCode::rank_failed, "the descriptor for the launcher's watch is not one for " + std::to_string(ranks) + " ranks",
                std::string("environment variable ") + progress_variable, "leave the variables of baleen's launcher alone");
  file.reset();
  return std::shared_ptr<ProgressBoard>(new ProgressBoard(std::move(file), static_cast<Cell*>(memory), ranks));
}

ProgressBoard::~ProgressBoard() {
  munmap(static_cast<void*>(cells_), static_cast<std::size_t>(ranks_) * sizeof(Cell));
}

void ProgressBoard::report(int rank, std::string_view action, bool limited) {
  Cell& cell = cells_[rank];
  const std::uint32_t version = cell.version.load(std::memory_order_relaxed);
  cell.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  cell.limited.store(limited ? 1 : 0, std::memory_order_relaxed);
  cell.nanoseconds.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  const std::size_t length = std::min(action.size(), std::size(cell.action) - 1);
  for (std::size_t i = 0; i < length; ++i) cell.action[i].store(action[i], std::memory_order_relaxed);
  cell.action[length].store('\0', std::memory_order_relaxed);
  cell.version.store(version + 2, std::memory_order_release);
}

ProgressBoard::Entry ProgressBoard::read(int rank) const {
  const Cell& cell = cells_[rank];
  Entry entry;
  // A rank that was killed while it wrote leaves an odd version for ever: after some attempts what is there has to do.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint32_t before = cell.version.load(std::memory_order_acquire);
    entry.limited = cell.limited.load(std::memory_order_relaxed) != 0;
    entry.when = Clock::time_point(Clock::duration(cell.nanoseconds.load(std::memory_order_relaxed)));
    entry.action.clear();
    for (const auto& letter : cell.action) {
      const char value = letter.load(std::memory_order_relaxed);
      if (value == '\0') break;
      entry.action += value;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && cell.version.load(std::memory_order_relaxed) == before) break;
  }
  return entry;
}

ProgressReporter::ProgressReporter(const RankEnvironment& environment) : rank_(environment.rank) {
  if (environment.progress_descriptor >= 0) board_ = ProgressBoard::attach(Descriptor(environment.progress_descriptor), environment.size);
}

}  // namespace baleen
