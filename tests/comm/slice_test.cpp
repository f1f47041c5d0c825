#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/communicator.h"

namespace baleen {
namespace {

TEST(SliceOf, SlicesCoverTheElementsOnceAndStartAtMultiplesOf128) {
  for (const std::size_t count : {0, 1, 127, 128, 129, 1000, 1024, 100'003})
    for (const int size : {1, 2, 3, 5, 8, 16}) {
      std::size_t end = 0, longest = slice_of(count, size, 0).size();
      for (int rank = 0; rank < size; ++rank) {
        const SliceRange slice = slice_of(count, size, rank);
        EXPECT_EQ(slice.begin, end);
        EXPECT_LE(slice.size(), longest);
        EXPECT_TRUE(slice.end == count || slice.end % slice_granularity == 0) << slice.end;
        end = slice.end;
      }
      EXPECT_EQ(end, count);
    }
}

TEST(SliceOf, LengthIsTheEvenShareRoundedUp) {
  EXPECT_EQ(slice_of(1000, 3, 0).size(), 384u);  // ⌈1000 / 3⌉ = 334, rounded up to 128s
  EXPECT_EQ(slice_of(1000, 3, 2).size(), 232u);
  EXPECT_EQ(slice_of(129, 4, 1).size(), 1u);
  EXPECT_EQ(slice_of(129, 4, 2).size(), 0u);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(slice_of(128 * 4 * 7, 4, rank).size(), 128u * 7);
  EXPECT_THROW(slice_of(1, 2, 2), Error);
}

}  // namespace
}  // namespace baleen
