#include "launch/launcher_programs.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "launch/rank_environment.h"
#include "launch/shared_region.h"
#include "launch/stop_signal.h"

namespace baleen::testing {
namespace {

constexpr int peer_failed = static_cast<int>(ExitCode::rank_failed);

void nap() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// What communication does in a real rank: look at the abort flag until it is raised.
int wait_for_abort(const SharedRegion& region) {
  while (!region.abort_cell().raised()) nap();
  return peer_failed;
}

std::shared_ptr<SharedRegion> region_of(const RankEnvironment& me) {
  return SharedRegion::attach(Descriptor(me.region_descriptor), me.size);
}

// Everything the launcher promises to a rank; 1 when something is missing.
int check_environment() {
  const RankEnvironment me = detect_ranks();
  const auto region = region_of(me);
  int death_signal = 0;
  prctl(PR_GET_PDEATHSIG, &death_signal);
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  const bool fine = me.source == RankSource::baleen && me.size == 3 && me.local_size == 3 && me.rank == me.local_rank &&
                    std::string(std::getenv("OMP_NUM_THREADS")) == "7" && std::string(std::getenv("OMP_WAIT_POLICY")) == "passive" &&
                    std::string(std::getenv("BALEEN_TEST_WORD")) == "whale" && death_signal == SIGKILL && getppid() == me.launcher_pid &&
                    getpgrp() == getpgid(me.launcher_pid) && getsid(0) == getsid(me.launcher_pid) && sigismember(&blocked, SIGTERM) == 1 &&
                    sigismember(&blocked, SIGCHLD) == 0 && inherited_descriptors() == std::stoul(std::getenv("BALEEN_TEST_DESCRIPTORS"));
  return fine ? 0 : 1;
}

int die_by_signal() {
  const RankEnvironment me = detect_ranks();
  const auto region = region_of(me);
  if (me.rank == 2) raise(SIGKILL);
  return wait_for_abort(*region);
}

// Rank 0 reports a failed peer before the rank that really failed is gone: it must not be named.
int fail_second() {
  const RankEnvironment me = detect_ranks();
  const auto region = region_of(me);
  if (me.rank == 0) return peer_failed;
  if (me.rank == 1) {
    wait_for_abort(*region);
    return static_cast<int>(ExitCode::bad_data);
  }
  return wait_for_abort(*region);
}

int stopped_dead() {
  const RankEnvironment me = detect_ranks();
  const auto region = region_of(me);
  if (me.rank == 1) raise(SIGSTOP);
  region->abort_cell().raise("rank 0 waited for rank 1");
  return peer_failed;
}

int odd_code() {
  const RankEnvironment me = detect_ranks();
  return me.rank == 1 ? 77 : wait_for_abort(*region_of(me));
}

// Stops when asked to. Rank 0 passes the request to the launcher, once per the number in the environment.
int until_stopped() {
  const RankEnvironment me = detect_ranks();
  const auto region = region_of(me);
  const int signal = std::atoi(std::getenv("BALEEN_TEST_SIGNAL"));
  const StopSignal stop;
  if (me.rank == 0) kill(me.launcher_pid, signal);
  while (!stop.requested()) nap();
  return stop.signal() == SIGTERM ? static_cast<int>(ExitCode::stopped) : 1;
}

// The request comes before the rank can honour it.
int late_handler() {
  const RankEnvironment me = detect_ranks();
  const auto region = region_of(me);
  if (me.rank == 0) kill(me.launcher_pid, SIGTERM);
  sigset_t pending;
  do {
    nap();
    sigpending(&pending);
  } while (sigismember(&pending, SIGTERM) == 0);
  const StopSignal stop;  // takes the one that is pending
  return stop.requested() ? static_cast<int>(ExitCode::stopped) : 1;
}

// One rank is through when the request comes; the others save.
int half_done() {
  return detect_ranks().rank == 0 ? 0 : static_cast<int>(ExitCode::stopped);
}

// Never ends by itself: only SIGKILL helps. Rank 0 asks the launcher to stop, and asks again until it is killed.
int stubborn() {
  const RankEnvironment me = detect_ranks();
  while (true) {
    if (me.rank == 0) kill(me.launcher_pid, SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

int hang() {
  while (true) nap();
}

// Is itself a launcher, for the test that kills one. Its ranks inherit the pipe that the test reads.
int nested_launcher() {
  LaunchOptions options = ranks_running("hang", 3);
  options.started = [](const std::vector<pid_t>&) {
    const char ready = 'r';
    if (write(std::atoi(std::getenv("BALEEN_TEST_PIPE")), &ready, 1) != 1) std::abort();
  };
  return launch_ranks(options).exit_code;
}

}  // namespace

RankPrograms launcher_programs() {
  return {{"check_environment", check_environment},
          {"done", [] { return 0; }},
          {"die_by_signal", die_by_signal},
          {"fail_second", fail_second},
          {"stopped_dead", stopped_dead},
          {"odd_code", odd_code},
          {"until_stopped", until_stopped},
          {"late_handler", late_handler},
          {"half_done", half_done},
          {"stubborn", stubborn},
          {"hang", hang},
          {"nested_launcher", nested_launcher}};
}

}  // namespace baleen::testing
