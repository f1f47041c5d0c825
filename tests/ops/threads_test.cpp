#include "ops/threads.h"

#include <sched.h>

#include <thread>

#include "ops/support.h"

namespace baleen::ops::testing {
namespace {

TEST(Threads, AreSetForTheCallingThreadAlone) {
  const int before = threads();
  const auto on_a_new_thread = [] {
    int count = 0;
    std::thread([&] { count = threads(); }).join();
    return count;
  };
  const int elsewhere = on_a_new_thread();
  set_threads(elsewhere + 3);
  EXPECT_EQ(threads(), elsewhere + 3);
  EXPECT_EQ(on_a_new_thread(), elsewhere);
  set_threads(0);
  cpu_set_t available;
  ASSERT_EQ(sched_getaffinity(0, sizeof(available), &available), 0);
  EXPECT_EQ(threads(), CPU_COUNT(&available));
  set_threads(before);
  EXPECT_THROW(set_threads(-1), Error);
}

}  // namespace
}  // namespace baleen::ops::testing
