// One training step, as docs/architecture.md has it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
  std::string skipped;  // where loss or norm was not finite and the weights were left as they are: the step, parameter and rank
  double seconds = 0;   // from its beginning, or from the end of the step before where the device had work all along, to its end
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
  // With `skip_non_finite` a step whose loss or gradient norm is not finite changes nothing, and the next one goes on; results are then
  // never late, because naming the parameter takes the weights as they were.
  TrainingStep(Engine& engine, AdamWOptimizer& optimizer, const BatchSource& batches, LrSchedule schedule, double gradient_clip,
               StepGraphs graphs = StepGraphs::where_possible, bool skip_non_finite = false);

  // Step s reads batch s - 1 + count.
  void skip_batches(std::int64_t count) { skipped_batches_ = count; }
  // Of the step enqueued last: how long this rank took to read its part of the batch.
  double reading_seconds() const { return reading_seconds_; }

  // Enqueues step `step`, counted from 1. `votes` become their sums over all ranks; the first is the wish to stop: where its sum is not 0,
  // no rank runs the step, and the answer is false. At most results_late() results may be left to take.
  bool enqueue(std::int64_t step, std::span<double> votes);
  bool enqueue(std::int64_t step, bool stop) {
    double vote = stop ? 1.0 : 0.0;
    return enqueue(step, {&vote, 1});
  }
  // Results that can be left for later without the device running out of work: 1 on a GPU, else 0.
  int results_late() const { return late_; }
  int pending() const { return static_cast<int>(pending_.size()); }
  // The result of the earliest step that is pending; waits for it. Throws Error(bad_numbers) on every rank when the loss or the norm of the
  // gradient was not finite and such steps are not skipped: then neither that step nor any after it has changed the weights.
  StepResult take();

  // Whether the last step that was enqueued was a graph; where a GPU's steps never will be, the reason.
  bool replayed() const { return graph_nodes_ > 0; }
  // The kernels, copies and fills of that graph; 0 where it was none.
  std::size_t graph_nodes() const { return graph_nodes_; }
  const std::string& why_no_graph() const { return why_no_graph_; }

  // Both, for one step; nothing where any rank has `stop` set.
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

  HostBatch fill(Slot& slot, std::int64_t step);
  bool records_graphs() const;
  std::string reason_against_graphs() const;
  // From the batch in the slot to the sums in it.
  void enqueue_work(const Slot& slot, const HostBatch& batch);
  void enqueue_or_replay(Slot& slot, const HostBatch& batch);
  std::string name_problem(const Pending& failed);

  Engine& engine_;
  AdamWOptimizer& optimizer_;
  const BatchSource& batches_;
  LrSchedule schedule_;
  double gradient_clip_;
  bool skip_non_finite_;
  std::int64_t skipped_batches_ = 0;
  double reading_seconds_ = 0;
  int late_;
  std::unique_ptr<Device> host_;
  std::array<Slot, 2> slots_;
  Buffer squares_;  // [1] fp64
  std::string why_no_graph_;
  bool methods_chosen_ = false;
  std::size_t graph_nodes_ = 0;
  std::deque<Pending> pending_;
};

// Valid targets among `targets`.
std::int64_t count_valid(std::span<const std::int32_t> targets);

}  // namespace baleen
