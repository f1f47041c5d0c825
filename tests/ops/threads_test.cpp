#include "ops/threads.h"

#include <sched.h>

#include <thread>

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

TEST(Threads, AreSetForTheCallingThreadAlone) {
  const int before = threads();
  set_threads(3);
  EXPECT_EQ(threads(), 3);
  int elsewhere = 0;
  std::thread([&] { elsewhere = threads(); }).join();
  EXPECT_EQ(elsewhere, before);
  set_threads(0);
  cpu_set_t available;
  ASSERT_EQ(sched_getaffinity(0, sizeof(available), &available), 0);
  EXPECT_EQ(threads(), CPU_COUNT(&available));
  set_threads(before);
  EXPECT_THROW(set_threads(-1), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
