#include "launch/launcher.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "launch/progress_board.h"
#include "launch/rank_environment.h"
#include "launch/shared_region.h"
#include "launch/spawn.h"
#include "launch/stop_signal.h"

namespace baleen {
namespace {

using Clock = std::chrono::steady_clock;

// Blocks the signals a launcher handles, takes them one at a time, and puts everything back.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&set_);
    for (const int signal : StopSignal::signals) sigaddset(&set_, signal);
    sigaddset(&set_, SIGCHLD);
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;  // an ignored SIGCHLD would reap the ranks before we see how they ended
    sigaction(SIGCHLD, &standard, &previous_child_action_);
    pthread_sigmask(SIG_BLOCK, &set_, &previous_mask_);
  }
  ~SignalQueue() {
    while (next(std::chrono::milliseconds(0)) != 0) continue;  // a late signal must not kill the process that has the outcome to report
    sigaction(SIGCHLD, &previous_child_action_, nullptr);
    pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal, or 0 after `timeout`.
  int next(std::chrono::milliseconds timeout) const {
    const timespec limit{timeout.count() / 1000, (timeout.count() % 1000) * 1'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &limit);
    return signal > 0 ? signal : 0;
  }
  const sigset_t& previous_mask() const { return previous_mask_; }

 private:
  sigset_t set_{}, previous_mask_{};
  struct sigaction previous_child_action_{};
};

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  std::string text = name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
  if (signal == SIGKILL) text += " (the out-of-memory killer or a person)";
  if (signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE || signal == SIGABRT) text += " (a crash)";
  return text;
}

// The state of a process's main thread as /proc says it: the letter behind the name, which may hold anything. '?' where it is gone.
char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

std::string seconds_text(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

// One life of the ranks.
class Job {
 public:
  Job(const LaunchOptions& options, const SignalQueue& signals, const std::string& name, int restarts)
      : options_(options), signals_(signals), name_(name), restarts_(restarts) {
    region_ = SharedRegion::create(options.ranks, true);
    if (options.progress_timeout.count() > 0) board_ = ProgressBoard::create(options.ranks);
  }
  ~Job() { kill_all(); }  // reached with ranks alive only when starting one of them has failed
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void start() {
    for (int rank = 0; rank < options_.ranks; ++rank) ranks_.push_back({spawn(request(rank))});
    std::vector<pid_t> pids;
    for (const Rank& rank : ranks_) pids.push_back(rank.pid);
    if (options_.started) options_.started(pids);
  }

  bool asked_to_stop() const { return stop_signal_.has_value(); }

  LaunchOutcome supervise() {
    while (reap()) {
      auto timeout = std::chrono::milliseconds(1000);  // a bound, not a rhythm: SIGCHLD ends the wait
      if (board_ != nullptr && !kill_at_) {
        find_hanging();
        timeout = std::clamp(options_.progress_timeout / 20, std::chrono::milliseconds(10), timeout);
      }
      if (kill_at_) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(*kill_at_ - Clock::now());
        if (left.count() <= 0) {
          send_all(SIGKILL, true);
          kill_at_ = Clock::now() + std::chrono::seconds(1);  // a process in uninterruptible sleep: keep at it
          continue;
        }
        timeout = std::min(timeout, left + std::chrono::milliseconds(1));
      }
      handle(signals_.next(timeout));
    }
    return outcome();
  }

 private:
  struct Rank {
    pid_t pid = 0;
    std::optional<int> status = std::nullopt;  // of waitpid, once reaped
    bool killed_here = false;
    std::optional<Clock::time_point> stopped_since = std::nullopt;
    int looks_awake = 0;  // looks in a row at which its main thread did not sleep
  };

  SpawnRequest request(int rank) const {
    SpawnRequest out;
    out.executable = own_executable();
    out.arguments = options_.arguments;
    out.environment = options_.environment;
    const int threads = options_.threads > 0 ? options_.threads : std::max(1, available_cores() / options_.ranks);
    out.environment["OMP_NUM_THREADS"] = std::to_string(threads);
    out.environment["OMP_WAIT_POLICY"] = "passive";  // spinning OpenMP threads starve the comm worker
    out.environment[rank_variable] = std::to_string(rank);
    out.environment[size_variable] = std::to_string(options_.ranks);
    out.environment[region_variable] = std::to_string(region_->descriptor());
    out.environment[launcher_variable] = std::to_string(getpid());
    out.environment[job_variable] = name_;
    out.environment[restarts_variable] = std::to_string(restarts_);
    out.inherited_descriptors = {region_->descriptor()};
    if (board_ != nullptr) {
      out.environment[progress_variable] = std::to_string(board_->descriptor());
      out.inherited_descriptors.push_back(board_->descriptor());
    }
    out.signal_mask = signals_.previous_mask();
    // Blocked until the rank holds a StopSignal: a request that comes while the rank starts is kept, not fatal.
    for (const int signal : StopSignal::signals)
      options_.graceful_stop ? sigaddset(&out.signal_mask, signal) : sigdelset(&out.signal_mask, signal);
    return out;
  }

  void handle(int signal) {
    if (signal == 0 || signal == SIGCHLD) return;
    if (!stop_signal_) {
      stop_signal_ = signal;
      stopped_at_ = Clock::now();
      send_all(options_.graceful_stop ? SIGTERM : SIGKILL, !options_.graceful_stop);
    } else if (signal != SIGUSR1 && Clock::now() - stopped_at_ >= std::chrono::seconds(1)) {
      send_all(SIGKILL, true);
    }
  }

  void send_all(int signal, bool killing) {
    for (Rank& rank : ranks_) {
      if (rank.status) continue;  // reaped: the number may be another process's by now
      rank.killed_here |= killing;
      kill(rank.pid, signal);
    }
  }

  // The ranks that wait for one that hangs stand still too, and may have for longer; but they sleep. Where all sleep the deadlines of their
  // collectives know more than can be seen from here, and have until half a timeout later.
  void find_hanging() {
    const auto now = Clock::now();
    const auto limit = options_.progress_timeout * 9 / 10;  // before the others' deadlines, which do not know the last action
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      if (rank.status) continue;
      const char state = state_of(rank.pid);
      const bool stopped = state == 'T' || state == 't';
      if (!stopped)
        rank.stopped_since.reset();
      else if (!rank.stopped_since)
        rank.stopped_since = now;
      rank.looks_awake = state == 'S' ? 0 : rank.looks_awake + 1;
      if (stopped && now - *rank.stopped_since >= limit)
        return end_hanging(i, now - *rank.stopped_since, " (the process is stopped, by SIGSTOP or a debugger)");
      const ProgressBoard::Entry entry = board_->read(static_cast<int>(i));
      if (stopped || !entry.limited) continue;
      const auto still = now - entry.when;
      if (still >= limit * 5 / 3 || (still >= limit && rank.looks_awake >= 3)) return end_hanging(i, still, "");
    }
  }

  void end_hanging(std::size_t index, std::chrono::nanoseconds still, const std::string& why) {
    Rank& rank = ranks_[index];
    const std::string action = board_->read(static_cast<int>(index)).action;
    failure_ = "rank " + std::to_string(index) + " hangs: no progress for " + seconds_text(still) + why +
               "; its last action: " + (action.empty() ? "starting" : action);
    first_failed_ = static_cast<int>(index);
    region_->abort_cell().raise(failure_);
    kill_at_ = Clock::now() + options_.grace;
    rank.killed_here = true;
    kill(rank.pid, SIGKILL);  // it cannot end by itself
  }

  // Takes note of every rank that has ended; false once all have.
  bool reap() {
    bool alive = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].status) continue;
      int status = 0;
      const pid_t got = waitpid(ranks_[rank].pid, &status, WNOHANG);
      if (got == ranks_[rank].pid) {
        ranks_[rank].status = status;
        note_end(static_cast<int>(rank));
      } else if (got < 0 && errno == ECHILD) {
        ranks_[rank].status = W_EXITCODE(static_cast<int>(ExitCode::rank_failed), 0);  // somebody else reaped it: treat it as lost
        note_end(static_cast<int>(rank));
      } else {
        alive = true;
      }
    }
    return alive;
  }

  void note_end(int rank) {
    const Rank& ended = ranks_[static_cast<std::size_t>(rank)];
    if (ended.killed_here) return;
    const int status = *ended.status;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == static_cast<int>(ExitCode::done) || code == static_cast<int>(ExitCode::stopped)) return;
    // Exit 4 is what a rank answers to somebody else's failure: it is never the first.
    if (code != static_cast<int>(ExitCode::rank_failed) && !first_failed_) {
      first_failed_ = rank;
      failure_ = describe(rank);
    }
    region_->abort_cell().raise(describe(rank));
    if (!kill_at_) kill_at_ = Clock::now() + options_.grace;
  }

  std::string describe(int rank) const {
    const int status = *ranks_[static_cast<std::size_t>(rank)].status;
    const std::string who = "rank " + std::to_string(rank);
    const std::string how = WIFSIGNALED(status) ? " was killed by " + signal_text(WTERMSIG(status))
                                                : " failed with exit code " + std::to_string(WEXITSTATUS(status));
    const std::string action = board_ == nullptr ? "" : board_->read(rank).action;
    return who + how + (action.empty() ? "" : "; its last action: " + action);
  }

  LaunchOutcome outcome() const {
    std::string hung;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (ranks_[rank].killed_here && first_failed_ != static_cast<int>(rank)) hung += (hung.empty() ? "" : ", ") + std::to_string(rank);
    const std::string late = hung.empty() ? "" : "; killed because it did not end in time: rank " + hung;
    if (first_failed_) {
      const int status = *ranks_[static_cast<std::size_t>(*first_failed_)].status;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::rank_failed);
      constexpr int passed_on[] = {1, 2, 3, 5, 6};
      const bool known = std::find(std::begin(passed_on), std::end(passed_on), code) != std::end(passed_on);
      return {known ? code : static_cast<int>(ExitCode::rank_failed), failure_ + late};
    }
    if (kill_at_) return {static_cast<int>(ExitCode::rank_failed), region_->abort_cell().reason() + late};
    if (!hung.empty())  // by a person's second signal, or by the first where the ranks do not save
      return {128 + *stop_signal_, "stopped by " + signal_text(*stop_signal_) + " without saving: ranks killed"};
    const auto saved = [](const Rank& rank) { return WEXITSTATUS(*rank.status) == static_cast<int>(ExitCode::stopped); };
    if (std::any_of(ranks_.begin(), ranks_.end(), saved))
      return {static_cast<int>(ExitCode::stopped), "stopped by " + (stop_signal_ ? signal_text(*stop_signal_) : "a signal to a rank")};
    return {};
  }

  void kill_all() {
    send_all(SIGKILL, true);
    for (Rank& rank : ranks_) {
      if (rank.status) continue;
      int status = 0;
      while (waitpid(rank.pid, &status, 0) < 0 && errno == EINTR) continue;
      rank.status = status;
    }
  }

  const LaunchOptions& options_;
  const SignalQueue& signals_;
  std::string name_;
  int restarts_;
  std::shared_ptr<SharedRegion> region_;
  std::shared_ptr<ProgressBoard> board_;  // nullptr: nobody watches
  std::vector<Rank> ranks_;
  std::optional<int> first_failed_, stop_signal_;
  std::string failure_;  // how the first has failed
  Clock::time_point stopped_at_;
  std::optional<Clock::time_point> kill_at_;  // set by the first failure
};

}  // namespace

LaunchOutcome launch_ranks(const LaunchOptions& options) {
  BALEEN_CHECK(options.ranks >= 1, options.ranks);
  const SignalQueue signals;
  const std::string name = std::to_string(getpid()) + "-" + std::to_string(std::random_device()());
  const auto latest = [&] { return options.latest_checkpoint ? options.latest_checkpoint() : std::int64_t{-1}; };
  std::int64_t saved = latest();
  for (int restarts = 0, in_a_row = 0;; ++restarts) {
    LaunchOutcome outcome;
    bool asked_to_stop = false;
    {
      Job job(options, signals, name, restarts);
      job.start();
      outcome = job.supervise();
      asked_to_stop = job.asked_to_stop();
    }
    if (outcome.exit_code != static_cast<int>(ExitCode::rank_failed) || options.max_restarts == 0 || asked_to_stop) return outcome;
    const std::int64_t now = latest();
    if (now > saved) in_a_row = 0;
    saved = now;
    if (in_a_row == options.max_restarts) {
      outcome.message +=
          "; given up after " + std::to_string(in_a_row) + (in_a_row == 1 ? " restart" : " restarts") + " without a new checkpoint";
      return outcome;
    }
    ++in_a_row;
    if (options.restarting)
      options.restarting(outcome.message + "; restart " + std::to_string(in_a_row) + " of " + std::to_string(options.max_restarts) +
                         (saved >= 0 ? " from the checkpoint of step " + std::to_string(saved) : " from the beginning"));
  }
}

int available_cores(int process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(process, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

int available_cores() {
  return std::max(1, available_cores(0));
}

}  // namespace baleen
