// gather, release and reduce in a schedule's table.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "pipeline/schedule.h"

namespace baleen {
namespace {

bool sends(const Action& action) {
  return action.kind == ActionKind::send_activation || action.kind == ActionKind::send_gradient;
}

// Inserts the actions into one rank's table. A run is the computations on one chunk, with their messages, until those on another.
class ShardedTable {
 public:
  ShardedTable(const std::vector<Action>& table, int whole_chunks) : table_(table), whole_chunks_(whole_chunks) {
    for (std::size_t at = 0; at < table.size(); ++at) {
      if (table[at].compute() && (runs_.empty() || runs_.back() != table[at].chunk)) runs_.push_back(table[at].chunk);
      if (table[at].last_backward()) {
        const auto chunk = static_cast<std::size_t>(table[at].chunk);
        if (last_backward_.size() <= chunk) last_backward_.resize(chunk + 1, none);
        last_backward_[chunk] = at;
      }
    }
  }

  std::vector<Action> build() {
    for (std::size_t at = 0; at < table_.size(); ++at) {
      const Action& action = table_[at];
      if (!sends(action)) begin_with(action.chunk);
      out_.push_back(action);
      if (action.last_backward() && last_backward_[static_cast<std::size_t>(action.chunk)] == at) complete_.push_back(action.chunk);
    }
    end_run();
    return std::move(out_);
  }

  int most_whole() const { return most_; }

 private:
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  std::size_t next_use(int chunk, std::size_t from) const {
    for (std::size_t run = from; run < runs_.size(); ++run)
      if (runs_[run] == chunk) return run;
    return none;
  }
  bool whole(int chunk) const { return std::find(held_.begin(), held_.end(), chunk) != held_.end(); }

  // An action on `chunk` that is no send comes next.
  void begin_with(int chunk) {
    if (run_ != none && runs_[run_] == chunk) return reduce_complete();
    end_run();
    run_ = run_ == none ? 0 : run_ + 1;
    if (whole_chunks_ == 0) return;
    gather(chunk);
    if (whole_chunks_ > 1 && run_ + 1 < runs_.size()) gather(runs_[run_ + 1]);
  }

  void end_run() {
    reduce_complete();
    if (run_ != none && whole_chunks_ > 0 && next_use(runs_[run_], run_ + 1) == none) release(runs_[run_]);
  }

  void reduce_complete() {
    for (const int chunk : complete_) out_.push_back({ActionKind::reduce, chunk});
    complete_.clear();
  }

  void release(int chunk) {
    out_.push_back({ActionKind::release, chunk});
    held_.erase(std::find(held_.begin(), held_.end(), chunk));
  }

  // Makes room, where there is none, by the chunk whose next use is the furthest away.
  void gather(int chunk) {
    if (whole(chunk)) return;
    if (static_cast<int>(held_.size()) == whole_chunks_)
      release(*std::max_element(held_.begin(), held_.end(), [&](int a, int b) { return next_use(a, run_) < next_use(b, run_); }));
    out_.push_back({ActionKind::gather, chunk});
    held_.push_back(chunk);
    most_ = std::max(most_, static_cast<int>(held_.size()));
  }

  const std::vector<Action>& table_;
  int whole_chunks_, most_ = 0;
  std::vector<int> runs_;                   // the chunk of each
  std::vector<std::size_t> last_backward_;  // by chunk
  std::vector<Action> out_;
  std::size_t run_ = none;
  std::vector<int> held_, complete_;  // chunks that are whole; chunks to reduce as soon as the sends are on their way
};

}  // namespace

Schedule with_sharding(Schedule schedule, int whole_chunks) {
  BALEEN_CHECK(whole_chunks >= 0, whole_chunks);
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    ShardedTable table(schedule.ranks[rank], whole_chunks);
    schedule.ranks[rank] = table.build();
    schedule.weights_gathered[rank] = table.most_whole();
  }
  return schedule;
}

}  // namespace baleen
