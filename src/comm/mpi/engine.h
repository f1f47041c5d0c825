// MPI in a thread of its own.
//
// All calls of MPI are made by one thread, so that MPI_THREAD_FUNNELED is enough, which every build of MPI has: MPI_THREAD_MULTIPLE would
// give each communicator a thread that polls, and take a lock in each call. The thread asks MPI about everything under way in turn; it
// spins while something moves, then yields, then sleeps for tens of microseconds at a time.
//
// A wait has a deadline. When one passes, the thread asks the other members where they are, and the job ends with a reason that names who
// does not answer or has not come. A failure is sent to all ranks; after it, no call of MPI is made, MPI_Finalize included.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/channel.h"
#include "comm/mpi/control.h"

namespace baleen::mpi {

struct EngineOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of every wait for another rank
  std::size_t largest_count = std::size_t{1} << 30;              // see Link; tests take a small one
};

class Engine {
 public:
  // Initialises MPI. Throws Error(bad_config) when MPI is in use already, Error(rank_failed) when it cannot start.
  explicit Engine(const EngineOptions& options);
  // Finalises MPI, unless a rank has failed.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // From any thread. Collective over the world as World::create_communicator is; nullptr where this rank takes no part.
  std::shared_ptr<Channel> create(const std::vector<int>& ranks, const std::string& name, std::atomic<std::uint64_t>& sent,
                                  std::atomic<std::uint64_t>& busy);
  void enqueue(Channel& channel, std::shared_ptr<Operation> operation);
  // Ends a channel; what is pending on it fails, for its other members too.
  void close(const std::shared_ptr<Channel>& channel);
  // Fails every operation of one communicator, or with id 0 of all, on every rank. Returns once the others have been told.
  void abort(std::uint32_t communicator, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  // A question to the members of a communicator whose operation is late.
  struct Inquiry {
    std::uint32_t communicator = 0;
    std::uint64_t begun = 0;
    OperationTag tag;
    std::string name;
    std::vector<int> asked;
    int waits_for = -1;  // of a message: its other end
    std::map<int, ControlMessage> answers;
    double waited_s = 0;
    Clock::time_point until;
  };

  void run(std::promise<void>& started);
  void start_mpi();
  void finish_mpi();
  bool run_posted();
  bool pump(Clock::time_point now);
  bool rest(bool busy, bool moved);
  void look_for_late();
  void ask(Inquiry inquiry);
  void conclude();
  void handle(const ControlMessage& message);
  void answer(const ControlMessage& question);
  std::shared_ptr<Channel> make(const std::vector<int>& ranks, const std::string& name, std::atomic<std::uint64_t>& sent,
                                std::atomic<std::uint64_t>& busy);
  void agree(const std::vector<int>& ranks, const std::string& name);
  void spread(std::uint32_t communicator, const std::string& reason);
  void take_failure(std::uint32_t communicator, const std::string& reason);
  void give_up(const char* why) noexcept;
  void fail_channel(Channel& channel, const Error& error);
  // Runs `body` in MPI's thread and waits for it.
  template <class Body>
  auto call(Body body) -> decltype(body());

  const EngineOptions options_;
  int rank_ = 0, size_ = 1;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::function<void()>> posted_;
  bool wake_ = false, stopping_ = false;
  std::atomic<bool> attention_{false};  // something of the above has changed

  // Of MPI's thread alone.
  std::unique_ptr<Control> control_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::map<std::uint32_t, std::string> aborted_;  // communicators, also those that do not exist here yet
  std::uint32_t created_ = 0;
  bool creating_ = false;
  std::optional<std::string> dead_;  // the job's failure
  std::optional<Inquiry> inquiry_;
  Clock::time_point looked_, control_looked_;
  int idle_rounds_ = 0;
};

}  // namespace baleen::mpi
