#include "launch/shared_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/error.h"

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

TEST(SharedRegion, CannotBeResizedUnderTheOthers) {
  const auto region = SharedRegion::create(1, true);
  EXPECT_NE(ftruncate(region->descriptor(), 4096), 0);
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
