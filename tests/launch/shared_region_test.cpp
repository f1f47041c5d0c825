#include "launch/shared_region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "launch/memory_file.h"

namespace baleen {
namespace {

Descriptor copy_of(const SharedRegion& region) {
  return Descriptor(fcntl(region.descriptor(), F_DUPFD_CLOEXEC, 0));
}

TEST(SharedRegion, TwoMappingsShareMemoryAndTheAbortFlag) {
  const auto first = SharedRegion::create(3, true);
  const auto second = SharedRegion::attach(copy_of(*first), 3);
  EXPECT_EQ(second->world_size(), 3);
  first->payload()[12345] = std::byte{7};
  EXPECT_EQ(second->payload()[12345], std::byte{7});
  EXPECT_FALSE(first->abort_cell().raised());
  second->abort_cell().raise("rank 1 has gone");
  EXPECT_TRUE(first->abort_cell().raised());
  EXPECT_EQ(first->abort_cell().reason(), "rank 1 has gone");
}

TEST(SharedRegion, KeepsItsDescriptorOnlyWhenAsked) {
  EXPECT_EQ(SharedRegion::create(1)->descriptor(), -1);
  const auto kept = SharedRegion::create(1, true);
  EXPECT_EQ(fcntl(kept->descriptor(), F_GETFD), FD_CLOEXEC);
  kept->close_descriptor();
  EXPECT_EQ(kept->descriptor(), -1);
}

TEST(SharedRegion, DiscardedMemoryReadsAsZeros) {
  const auto region = SharedRegion::create(1);
  const auto part = region->payload().subspan(4096, 3 * 4096);
  std::fill(part.begin(), part.end(), std::byte{9});
  region->discard(part);
  EXPECT_TRUE(std::all_of(part.begin(), part.end(), [](std::byte value) { return value == std::byte{0}; }));
}

TEST(SharedRegion, ForeignDescriptorsAreRefused) {
  const auto refused = [](Descriptor file, int world) {
    try {
      SharedRegion::attach(std::move(file), world);
      return false;
    } catch (const Error& error) {
      return error.code() == ExitCode::rank_failed;
    }
  };
  EXPECT_TRUE(refused(Descriptor(), 1));
  EXPECT_TRUE(refused(Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC)), 1));
  Descriptor zeros(memfd_create("zeros", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(zeros.get(), 1 << 20), 0);
  EXPECT_TRUE(refused(std::move(zeros), 1));
  const auto region = SharedRegion::create(2, true);
  EXPECT_TRUE(refused(copy_of(*region), 3));
  EXPECT_FALSE(refused(copy_of(*region), 2));
}

TEST(SharedRegion, TheHeapIsOfHugePagesWhereTheSystemAllowsThem) {
  const auto region = SharedRegion::create(1);
  const auto heap = region->heap().subspan(0, 4 * huge_page);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(heap.data()) % huge_page, 0u);
  std::fill(heap.begin(), heap.end(), std::byte{1});
  // What the system says of the mapping that the heap begins.
  std::ifstream maps("/proc/self/smaps");
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(heap.data()));
  long huge_kilobytes = -1;
  bool inside = false;
  for (std::string line; std::getline(maps, line) && huge_kilobytes < 0;) {
    inside = inside || line.starts_with(begin);
    if (inside && line.starts_with("ShmemPmdMapped:")) huge_kilobytes = std::stol(line.substr(line.find_first_of("0123456789")));
  }
  if (huge_kilobytes <= 0) GTEST_SKIP() << "no huge pages for shared memory here: this user may not mount a tmpfs, or the kernel has none";
  // The whole is of zeros again when it is discarded, piece by piece.
  region->discard(heap.subspan(4096, huge_page));
  EXPECT_EQ(heap[4095], std::byte{1});
  EXPECT_TRUE(std::all_of(heap.begin() + 4096, heap.begin() + 4096 + huge_page, [](std::byte value) { return value == std::byte{0}; }));
  EXPECT_EQ(heap[4096 + huge_page], std::byte{1});
}

TEST(MemoryFile, IsSparseAndHasNoName) {
  const Descriptor file = make_memory_file(std::size_t{1} << 40);
  struct stat status{};
  ASSERT_EQ(fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_size, off_t{1} << 40);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(fcntl(file.get(), F_GETFD), FD_CLOEXEC);
  if (status.st_nlink != 0) {  // a memfd has one link, to nowhere
    EXPECT_TRUE(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(file.get())).string().starts_with("/memfd:"));
  }
  EXPECT_THROW(make_memory_file(std::size_t{1} << 63), Error);
}

TEST(AbortCell, TheFirstReasonWinsAndALongOneIsCut) {
  const auto region = SharedRegion::create(1);
  AbortCell& cell = region->abort_cell();
  EXPECT_EQ(cell.reason(), "");
  std::vector<std::jthread> threads;
  for (int index = 0; index < 8; ++index)
    threads.emplace_back([&cell, index] {
      cell.raise(std::string(5000, static_cast<char>('a' + index)));
      EXPECT_TRUE(cell.raised());
    });
  threads.clear();
  const std::string reason = cell.reason();
  EXPECT_GT(reason.size(), 900u);
  EXPECT_LT(reason.size(), 1024u);
  EXPECT_EQ(reason, std::string(reason.size(), reason[0]));
}

}  // namespace
}  // namespace baleen
