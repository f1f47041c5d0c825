#include "launch/stop_signal.h"

#include <gtest/gtest.h>

namespace baleen {
namespace {

TEST(StopSignal, EachOfThemSetsTheFlagAndTheOldHandlersComeBack) {
  struct sigaction before{}, after{};
  sigaction(SIGTERM, nullptr, &before);
  for (const int signal : StopSignal::signals) {
    const StopSignal stop;
    EXPECT_FALSE(stop.requested());
    raise(signal);
    EXPECT_TRUE(stop.requested());
    EXPECT_EQ(stop.signal(), signal);
  }
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(StopSignal, TakesASignalThatWaitedForIt) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  raise(SIGTERM);
  {
    const StopSignal stop;
    EXPECT_TRUE(stop.requested());
  }
  sigset_t now;
  sigprocmask(SIG_BLOCK, nullptr, &now);
  EXPECT_EQ(sigismember(&now, SIGTERM), 1);  // as it found it
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST(StopSignal, AnIgnoredInterruptStaysIgnored) {
  struct sigaction ignore{}, before{};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGINT, &ignore, &before);
  {
    const StopSignal stop;
    raise(SIGINT);
    EXPECT_FALSE(stop.requested());
  }
  sigaction(SIGINT, &before, nullptr);
}

}  // namespace
}  // namespace baleen
