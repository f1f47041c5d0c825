// What each rank of a job is doing, in memory that the launcher reads: how a rank that hangs is noticed, and named with its last action.
//
// A rank writes when it begins something, from the thread that does it: a helper thread's pulse would go on while training stands still.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "launch/rank_environment.h"

namespace baleen {

class ProgressBoard {
 public:
  using Clock = std::chrono::steady_clock;  // one for all processes of a machine

  // A new board; its descriptor stays open (close-on-exec) to be handed to ranks. Throws Error(out_of_memory).
  static std::shared_ptr<ProgressBoard> create(int ranks);
  // Maps the board of another process, and closes the descriptor. Throws Error(rank_failed) when it is none for so many ranks.
  static std::shared_ptr<ProgressBoard> attach(Descriptor file, int ranks);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  int descriptor() const { return file_.get(); }

  // By the rank itself. `limited`: whoever does this for longer than comm.timeout_s hangs. A text too long is cut.
  void report(int rank, std::string_view action, bool limited);

  struct Entry {
    Clock::time_point when;  // 0 of the clock: the rank has said nothing yet
    bool limited = false;
    std::string action;
  };
  Entry read(int rank) const;

 private:
  struct Cell;
  ProgressBoard(Descriptor file, Cell* cells, int ranks) : file_(std::move(file)), cells_(cells), ranks_(ranks) {}

  Descriptor file_;
  Cell* cells_;
  int ranks_;
};

// A rank's line on the board of the launcher that started it; where nobody reads one, nothing.
class ProgressReporter {
 public:
  ProgressReporter() = default;
  // Takes the descriptor that the environment names.
  explicit ProgressReporter(const RankEnvironment& environment);
  void report(std::string_view action, bool limited) const {
    if (board_ != nullptr) board_->report(rank_, action, limited);
  }
  bool read_by_somebody() const { return board_ != nullptr; }

 private:
  std::shared_ptr<ProgressBoard> board_;
  int rank_ = 0;
};

}  // namespace baleen
