#include "train/checkpoint_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"
#include "comm/gather_texts.h"
#include "device/host_memory.h"
#include "train/background.h"

namespace baleen {
namespace {

using checkpoint::FileRecord;
using checkpoint::Piece;
using checkpoint::StateKind;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// What this rank writes of a parameter: of copies, one rank writes.
SliceRange owned_range(const UnitStorage& units, ParameterId id) {
  const ParameterDescription& parameter = units.parameter(id);
  if (units.unit(id.unit).copy || !parameter.held.counts) return {};
  return units.part(id, parameter.trainable ? units.slice(id.unit) : units.layout(id.unit).frozen_slice(units.options().shard));
}

// Replicas hold the same.
bool writes_checkpoint(const DataGroup& group) {
  return group.counts_norms();
}

struct OwnedState {
  checkpoint::Placement placement;
  Tensor tensor;
};

// The slices of every unit that this rank owns, cut at the borders of the parameters: what a frozen parameter has is its weight alone.
std::vector<OwnedState> owned_states(const UnitStorage& units) {
  std::vector<OwnedState> states;
  for (const ParameterId id : units.parameters()) {
    const ParameterDescription& parameter = units.parameter(id);
    const SliceRange range = owned_range(units, id);
    if (range.size() == 0) continue;
    const auto add = [&](StateKind kind, const Tensor& tensor) { states.push_back({placement_of(parameter, kind, range), tensor}); };
    if (!parameter.trainable) {
      const auto begin = static_cast<std::int64_t>(range.begin - units.kept(id).begin);
      add(StateKind::weight, units.kept_weights(id).rows(begin, static_cast<std::int64_t>(range.size())));
      continue;
    }
    add(StateKind::weight, units.of_updated(units.master(id.unit), id, range));
    add(StateKind::exp_avg, units.of_updated(units.exp_avg(id.unit), id, range));
    add(StateKind::exp_avg_sq, units.of_updated(units.exp_avg_sq(id.unit), id, range));
  }
  return states;
}

// A rank's states copied into memory that is there from the beginning, so that taking a copy is moving bytes and nothing else.
class Snapshot {
 public:
  static constexpr std::size_t alignment = 64;
  static std::size_t bytes_of(const std::vector<OwnedState>& states) {
    std::size_t bytes = 0;
    for (const OwnedState& state : states) bytes += (state.tensor.bytes() + alignment - 1) / alignment * alignment;
    return bytes;
  }
  // Throws Error(out_of_memory).
  Snapshot(const std::vector<OwnedState>& states, Device& device) : host_(create_host_memory(device)) {
    const std::size_t bytes = bytes_of(states);
    memory_ = host_->allocate("checkpoint copy", bytes);
    std::memset(memory_.data(), 0, bytes);  // so that its pages are there when the first copy is taken
    if (device.kind() != DeviceKind::cpu) stream_ = device.create_stream();
    auto* to = static_cast<std::byte*>(memory_.data());
    for (const OwnedState& state : states) {
      pieces_.push_back({state.placement, state.tensor.dtype(), to});
      const auto* from = static_cast<const std::byte*>(state.tensor.data());
      for (std::size_t done = 0; done < state.tensor.bytes(); done += longest_part)
        parts_.push_back({to + done, from + done, std::min(longest_part, state.tensor.bytes() - done)});
      to += (state.tensor.bytes() + alignment - 1) / alignment * alignment;
    }
  }

  void take() {
    if (stream_ != nullptr) {
      for (const Part& part : parts_) stream_->copy(part.to, part.from, part.bytes);
      stream_->synchronize();
      return;
    }
    const auto parts = static_cast<std::int64_t>(parts_.size());
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < parts; ++i)
      std::memcpy(parts_[static_cast<std::size_t>(i)].to, parts_[static_cast<std::size_t>(i)].from,
                  parts_[static_cast<std::size_t>(i)].bytes);
  }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  struct Part {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  static constexpr std::size_t longest_part = std::size_t{8} << 20;
  std::unique_ptr<Device> host_;
  Buffer memory_;
  std::unique_ptr<Stream> stream_;  // where the states are not in host memory
  std::vector<Piece> pieces_;
  std::vector<Part> parts_;
};

}  // namespace

std::uint64_t checkpoint_bytes(const DataGroup& group, const UnitStorage& units) {
  const StorageOptions& options = units.options();
  const std::size_t trainable = 3 * dtype_bytes(options.state), frozen = dtype_bytes(options.compute);
  std::uint64_t bytes = 0;
  for (const ParameterId id : units.parameters())
    if (writes_checkpoint(group)) bytes += owned_range(units, id).size() * (units.parameter(id).trainable ? trainable : frozen);
  group.everyone->all_reduce(&bytes, &bytes, 1, DType::u64, ReduceOp::sum).wait();
  return bytes;
}

class CheckpointSaver::Work {
 public:
  Work(std::filesystem::path run, std::int64_t keep, const DataGroup& group, const UnitStorage& units, Device* device)
      : run_(std::move(run)),
        keep_(static_cast<int>(std::min<std::int64_t>(keep, 1 << 30))),
        group_(group),
        units_(units),
        all_bytes_(checkpoint_bytes(group, units)) {
    if (writes_checkpoint(group)) states_ = owned_states(units);
    for (const OwnedState& state : states_) own_.bytes += state.tensor.bytes();
    if (device != nullptr) make_snapshot(*device);
  }

  void begin(const TrainingState& state) {
    const auto begun = Clock::now();
    finish();
    step_ = state.step;
    state_ = state;
    collectively("start a checkpoint", group_.everyone->rank() == 0, [&] { checkpoint::begin_checkpoint(run_, step_, all_bytes_); });
    phase_ = Phase::writing;
    if (snapshot_ == nullptr) {
      background_.run([this](const std::stop_token& stop) { write(stop); });
      finish();
    } else {
      const auto copying = Clock::now();
      snapshot_->take();
      own_.copying = seconds_since(copying);
      background_.start("checkpoint", [this](const std::stop_token& stop) { write(stop); });
    }
    own_.paused = seconds_since(begun);
  }

  Votes tell() const {
    if (phase_ == Phase::idle) return {};
    return {background_.done() ? 0.0 : 1.0, background_.done() && background_.failure() ? 1.0 : 0.0};
  }

  void hear(const Votes& all) {
    if (phase_ == Phase::idle || (all.failed == 0 && all.unwritten > 0)) return;
    const Phase heard = std::exchange(phase_, Phase::idle);
    if (all.failed > 0) {
      if (background_.done() && background_.failure()) throw *background_.failure();
      throw Error(ExitCode::rank_failed,
                  fmt::format("another rank could not {} the checkpoint of step {}",
                              heard == Phase::writing ? "write its part of" : "complete", step_),
                  "", "see that rank's message; earlier checkpoints are as they were");
    }
    background_.join();
    if (heard == Phase::writing) return collect();
    if (group_.everyone->rank() == 0)
      log::info("the checkpoint of step {} is saved: {:.1f} MB, training paused for {:.1f} ms", step_,
                static_cast<double>(all_bytes_) / 1e6, 1e3 * own_.paused);
  }

  void finish() {
    while (phase_ != Phase::idle) {
      // Short enough that no rank waits for another as long as a deadline, however slow that one's disk is.
      background_.wait_for(std::chrono::milliseconds(50));
      const Votes mine = tell();
      std::array<double, 2> votes{mine.unwritten, mine.failed};
      group_.everyone->all_reduce(votes.data(), votes.data(), votes.size(), DType::f64, ReduceOp::sum).wait();
      hear({votes[0], votes[1]});
    }
  }

  const Times& times() const { return own_; }
  bool background() const { return snapshot_ != nullptr; }

 private:
  enum class Phase { idle, writing, completing };

  // What the ranks of this machine need together, this one `bytes`. Collective.
  std::uint64_t bytes_of_machine(std::uint64_t bytes) {
    const std::array<std::uint64_t, 2> mine{machine_identity(), bytes};
    std::vector<std::array<std::uint64_t, 2>> all(static_cast<std::size_t>(group_.everyone->size()));
    group_.everyone->all_gather(mine.data(), all.data(), sizeof mine, DType::u8).wait();
    std::uint64_t sum = 0;
    for (const auto& [machine, its] : all) sum += machine == mine[0] ? its : 0;
    return sum;
  }

  // All ranks or none: one that waits for its own disk would keep the others waiting for it.
  void make_snapshot(Device& device) {
    std::string problem;
    // All have asked, and agreed, before one takes its part.
    if (const std::uint64_t bytes = bytes_of_machine(Snapshot::bytes_of(states_)); bytes > available_memory() / 2)
      problem = fmt::format("copies of the states of this machine's ranks take {} bytes, more than half of what is free", bytes);
    if (!somebody_refuses(problem)) {
      try {
        snapshot_ = std::make_unique<Snapshot>(states_, device);
      } catch (const Error& error) {
        if (error.code() != ExitCode::out_of_memory) throw;
        problem = error.what_is_wrong();
      }
      if (somebody_refuses(problem)) snapshot_.reset();
    }
    if (!problem.empty()) log::warning("checkpoints are saved in the foreground: {}", problem);
  }
  bool somebody_refuses(const std::string& problem) {
    std::int32_t refused = problem.empty() ? 0 : 1;
    group_.everyone->all_reduce(&refused, &refused, 1, DType::i32, ReduceOp::max).wait();
    return refused != 0;
  }

  // Runs `body` on the rank for which `mine` holds; when it throws there, throws on all.
  template <class Body>
  void collectively(const char* what, bool mine, Body body) {
    std::optional<Error> failure;
    if (mine) {
      try {
        body();
      } catch (const Error& error) {
        failure = error;
      }
    }
    std::int32_t failed = failure ? 1 : 0;
    group_.everyone->all_reduce(&failed, &failed, 1, DType::i32, ReduceOp::max).wait();
    if (failure) throw *failure;
    if (failed != 0) throw Error(ExitCode::rank_failed, fmt::format("another rank could not {}", what), "", "see that rank's message");
  }

  std::filesystem::path incomplete() const { return checkpoint::checkpoints_folder(run_) / (checkpoint::step_name(step_) + ".incomplete"); }

  void write(const std::stop_token& stop) {
    const auto begun = Clock::now();
    records_.clear();
    if (!writes_checkpoint(group_)) return;
    std::vector<std::vector<std::byte>> memory;  // what the host cannot read where it is
    std::vector<Piece> pieces;
    if (snapshot_ == nullptr)
      for (const OwnedState& state : states_)
        pieces.push_back({state.placement, state.tensor.dtype(), units_.on_host(state.tensor, memory.emplace_back()).data()});
    records_ = checkpoint::serialise_records(checkpoint::write_rank_files(incomplete(), group_.part, group_.parts, step_,
                                                                          snapshot_ != nullptr ? snapshot_->pieces() : pieces, stop));
    own_.writing = seconds_since(begun);
  }

  // The records to rank 0, which completes the checkpoint.
  void collect() {
    phase_ = Phase::completing;
    texts_ = gather_texts(*group_.everyone, records_);
    if (group_.everyone->rank() != 0) return;
    const auto complete = [this](const std::stop_token&) {
      std::vector<FileRecord> all;
      for (const std::string& text : texts_) {
        if (text.empty()) continue;  // of a replica
        for (FileRecord& record : checkpoint::parse_records(text, "a rank's record of its files")) all.push_back(std::move(record));
      }
      checkpoint::commit_checkpoint(incomplete(), step_, group_.parts, state_.to_json(), std::move(all));
      checkpoint::prune_checkpoints(run_, keep_);
    };
    if (snapshot_ != nullptr)
      background_.start("checkpoint", complete);
    else
      background_.run(complete);
  }

  std::filesystem::path run_;
  int keep_;
  const DataGroup& group_;
  const UnitStorage& units_;
  std::uint64_t all_bytes_;
  std::vector<OwnedState> states_;
  std::unique_ptr<Snapshot> snapshot_;  // nullptr: in the foreground
  Phase phase_ = Phase::idle;           // the same on every rank
  std::int64_t step_ = 0;
  TrainingState state_;
  Times own_;
  std::string records_;             // of this rank's files, once they are written
  std::vector<std::string> texts_;  // of all ranks
  Background background_;           // ends first
};

CheckpointSaver::CheckpointSaver(std::filesystem::path run, std::int64_t keep, const DataGroup& group, const UnitStorage& units,
                                 Device* device)
    : work_(std::make_unique<Work>(std::move(run), keep, group, units, device)) {}
CheckpointSaver::~CheckpointSaver() = default;
void CheckpointSaver::begin(const TrainingState& state) {
  work_->begin(state);
}
CheckpointSaver::Votes CheckpointSaver::tell() const {
  return work_->tell();
}
void CheckpointSaver::hear(const Votes& all) {
  work_->hear(all);
}
void CheckpointSaver::finish() {
  work_->finish();
}
const CheckpointSaver::Times& CheckpointSaver::times() const {
  return work_->times();
}
bool CheckpointSaver::background() const {
  return work_->background();
}

void save_checkpoint(const std::filesystem::path& run, const TrainingState& state, const DataGroup& group, const UnitStorage& units,
                     std::int64_t keep) {
  CheckpointSaver(run, keep, group, units, nullptr).begin(state);
}

}  // namespace baleen
