#include "train/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace baleen {
namespace {

TEST(Layout, ParsesWhatItWrites) {
  const auto layouts = parse_layouts("dp=2,zero=3; tp=2 ;pp=2,schedule=interleaved");
  ASSERT_EQ(layouts.size(), 3u);
  EXPECT_EQ(layouts[0].text(), "dp=2,zero=3");
  EXPECT_EQ(layouts[1].ranks(), 2);
  EXPECT_EQ(layouts[2].virtual_stages, 2);
  for (const ParallelLayout& layout : layouts) EXPECT_EQ(parse_layouts(layout.text()).front().text(), layout.text());
}

TEST(Layout, RefusesNonsense) {
  for (const char* text : {"", ";", "dp", "dp=0", "dp=two", "dq=2", "zero=4", "schedule=fast", "dp=2 zero=1", "dp=99999999999999999999"})
    EXPECT_THROW(parse_layouts(text), Error) << text;
}

TEST(Layout, AllOfFourRanksAreDistinctAndOfFourRanks) {
  std::set<std::string> seen;
  for (const ParallelLayout& layout : all_layouts(4)) {
    EXPECT_EQ(layout.ranks(), 4);
    EXPECT_TRUE(seen.insert(layout.text()).second) << layout.text();
  }
  EXPECT_TRUE(seen.contains("dp=4"));
  EXPECT_TRUE(seen.contains("dp=2,tp=2"));
}

}  // namespace
}  // namespace baleen
