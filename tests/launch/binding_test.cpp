#include "launch/binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <set>
#include <thread>

#include "base/error.h"

namespace baleen {
namespace {

CoreList usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  CoreList cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

// In a thread of its own: what it keeps to ends with it.
template <class Body>
void in_a_thread(Body body) {
  std::thread thread(body);
  thread.join();
}

class BindingTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("BALEEN_BINDING"); }
  void TearDown() override { unsetenv("BALEEN_BINDING"); }
};

TEST(ShareOfCores, IsWhatTheLauncherGaveOrAnEqualPart) {
  EXPECT_EQ(share_of_cores(64, 64, 8), 8);  // nobody is bound
  EXPECT_EQ(share_of_cores(8, 64, 8), 8);   // each to its own
  EXPECT_EQ(share_of_cores(4, 64, 8), 4);
  EXPECT_EQ(share_of_cores(32, 64, 8), 4);  // to sockets, which some share
  EXPECT_EQ(share_of_cores(4, 4, 4), 1);    // in a container of four cores
  EXPECT_EQ(share_of_cores(2, 0, 4), 1);
  EXPECT_EQ(share_of_cores(6, 0, 1), 6);
}

TEST_F(BindingTest, RanksGetCoresOfTheirOwnAndAllOfThem) {
  const CoreList usable = usable_cores();
  if (usable.size() < 2) GTEST_SKIP() << "this machine lends one core";
  const int ranks = static_cast<int>(std::min<std::size_t>(usable.size(), 8));
  const Binding binding = plan_binding({.local_ranks = ranks});
  ASSERT_EQ(binding.cores.size(), static_cast<std::size_t>(ranks)) << binding.reason;
  std::set<int> seen;
  std::size_t count = 0;
  for (const CoreList& cores : binding.cores) {
    EXPECT_FALSE(cores.empty());
    seen.insert(cores.begin(), cores.end());
    count += cores.size();
  }
  EXPECT_EQ(seen.size(), count) << "ranks share cores";
  EXPECT_EQ(CoreList(seen.begin(), seen.end()), usable);
  EXPECT_EQ(plan_binding({.local_ranks = ranks}).cores, binding.cores);
}

TEST_F(BindingTest, ARankKeepsToItsCoresAndSoDoItsThreads) {
  if (usable_cores().size() < 2) GTEST_SKIP() << "this machine lends one core";
  const Binding binding = plan_binding({.local_ranks = 2});
  ASSERT_EQ(binding.cores.size(), 2u) << binding.reason;
  in_a_thread([&] {
    bind_to(binding.cores[1]);
    EXPECT_EQ(usable_cores(), binding.cores[1]);
    in_a_thread([&] { EXPECT_EQ(usable_cores(), binding.cores[1]); });
  });
}

TEST_F(BindingTest, WhatTheUserAllowsIsWhatIsShared) {
  const CoreList usable = usable_cores();
  if (usable.size() < 2) GTEST_SKIP() << "this machine lends one core";
  in_a_thread([&] {
    bind_to({usable[1]});  // as taskset does
    EXPECT_TRUE(plan_binding({.local_ranks = 2}).cores.empty()) << "two ranks on one core";
    // Started by mpirun or srun, which has bound this rank: the same.
    const Binding bound = plan_binding({.local_ranks = 2, .launcher_may_bind = true});
    EXPECT_TRUE(bound.cores.empty());
    EXPECT_NE(bound.reason.find("launcher"), std::string::npos) << bound.reason;
  });
  EXPECT_EQ(plan_binding({.local_ranks = 2, .launcher_may_bind = true}).cores.size(), 2u) << "a launcher that binds nobody";
}

TEST_F(BindingTest, NobodyIsBoundWhereCoresOrThreadsDoNotAllowIt) {
  const int cores = static_cast<int>(usable_cores().size());
  for (const BindingRequest& request :
       {BindingRequest{.local_ranks = cores + 1}, BindingRequest{.local_ranks = 2, .threads = cores}, BindingRequest{.local_ranks = 1}}) {
    const Binding binding = plan_binding(request);
    EXPECT_TRUE(binding.cores.empty()) << request.local_ranks;
    EXPECT_FALSE(binding.reason.empty());
  }
}

TEST_F(BindingTest, AGpuThatTheSystemDoesNotPlaceIsNoReasonToFail) {
  const Binding binding = plan_binding({.local_ranks = 1, .gpus = {"ffff:ff:1f.0"}});
  EXPECT_TRUE(binding.cores.empty());
  EXPECT_NE(binding.reason.find("GPU"), std::string::npos) << binding.reason;
}

TEST_F(BindingTest, TheVariableLeavesEverythingAloneOrIsRefused) {
  setenv("BALEEN_BINDING", "none", 1);
  const Binding binding = plan_binding({.local_ranks = 2});
  EXPECT_TRUE(binding.cores.empty());
  EXPECT_NE(binding.reason.find("BALEEN_BINDING"), std::string::npos) << binding.reason;
  setenv("BALEEN_BINDING", "cores", 1);
  try {
    plan_binding({.local_ranks = 2});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_NE(std::string(error.what()).find("BALEEN_BINDING"), std::string::npos) << error.what();
  }
}

TEST(CoreText, NamesRanges) {
  EXPECT_EQ(core_text({}), "");
  EXPECT_EQ(core_text({3}), "3");
  EXPECT_EQ(core_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

}  // namespace
}  // namespace baleen
