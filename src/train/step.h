// One training step, as DESIGN.md section 4 has it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "data/loader.h"
#include "device/gpu.h"
#include "optim/adamw_optimizer.h"
#include "optim/lr_schedule.h"
#include "train/engine.h"

namespace baleen {

struct StepResult {
  std::int64_t step = 0;
  double loss = 0;       // mean over the valid targets of the global batch
  double grad_norm = 0;  // of the whole gradient, before clipping
  double lr = 0;
  double seconds = 0;  // from its beginning, or from the end of the step before where the device had work all along, to its end
};

// Whether a GPU's steps are recorded as graphs.
enum class StepGraphs { where_possible, never };

// A step only enqueues: whether the update happens and how far it is clipped is decided on the device, and its numbers come back when the
// next step has been enqueued. On the processor, where work runs at once, nothing is late.
//
// Where one rank trains on one GPU, everything of a step but its batch and a few scalars is recorded as one graph the second time that a
// step is enqueued (the first time, operations choose their methods), and replayed from then on: the same kernels, and the same bits.
class TrainingStep {
 public:
  TrainingStep(Engine& engine, AdamWOptimizer& optimizer, const BatchSource& batches, LrSchedule schedule, double gradient_clip,
               StepGraphs graphs = StepGraphs::where_possible);

  // Enqueues step `step`, counted from 1. False where any rank has `stop` set: then no rank runs the step. At most results_late() results
  // may be left to take.
  bool enqueue(std::int64_t step, bool stop);
  // Results that can be left for later without the device running out of work: 1 on a GPU, else 0.
  int results_late() const { return late_; }
  int pending() const { return static_cast<int>(pending_.size()); }
  // The result of the earliest step that is pending; waits for it. Throws Error(bad_numbers) on every rank when the loss or the norm of the
  // gradient was not finite: then neither that step nor any after it has changed the weights.
  StepResult take();

  // Whether the last step that was enqueued was a graph; where a GPU's steps never will be, the reason.
  bool replayed() const { return replayed_; }
  const std::string& why_no_graph() const { return why_no_graph_; }

  // Both, for one step.
  std::optional<StepResult> run(std::int64_t step, bool stop);

 private:
  struct Pending {
    StepResult result;
    double valid_tokens = 0;
    std::size_t slot = 0;
    Event begin, done;
  };
  // Host memory of one step in flight: this rank's part of the global batch, [G / (replicate · dp), T] each, and Σ token losses, Σ g². Its
  // graph reads and writes that memory.
  struct Slot {
    Buffer inputs, targets, sums;
    std::unique_ptr<Graph> graph;
  };

  HostBatch fill(Slot& slot, std::int64_t step) const;
  std::string reason_against_graphs() const;
  // From the batch in the slot to the sums in it.
  void enqueue_work(const Slot& slot, const HostBatch& batch);
  void enqueue_or_replay(Slot& slot, const HostBatch& batch);
  [[noreturn]] void fail_non_finite(const Pending& failed);

  Engine& engine_;
  AdamWOptimizer& optimizer_;
  const BatchSource& batches_;
  LrSchedule schedule_;
  double gradient_clip_;
  int late_;
  std::unique_ptr<Device> host_;
  std::array<Slot, 2> slots_;
  Buffer squares_;  // [1] fp64
  std::string why_no_graph_;
  bool methods_chosen_ = false, replayed_ = false;
  std::deque<Pending> pending_;
};

// Valid targets among `targets`.
std::int64_t count_valid(std::span<const std::int32_t> targets);

}  // namespace baleen
