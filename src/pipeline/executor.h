// Runs one rank's part of a schedule.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "device/timing.h"
#include "pipeline/boundary_plan.h"
#include "pipeline/links.h"
#include "pipeline/schedule.h"
#include "tensor/tensor.h"

namespace baleen {

// The layers of one rank, as the executor drives them. Chunks are numbered over the whole model. `in` is undefined on the model's first
// chunk, `out` on its last, and so are their gradients. `in` keeps its content until the micro-batch's last backward on the chunk, `d_out`
// until `backward` or `backward_weight`; `out` and `d_in` are the caller's when the call returns. Everything is enqueued on the compute
// stream that the executor was made with.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual void forward(int chunk, int micro_batch, const Tensor& in, const Tensor& out) = 0;
  // Both halves; and each of them alone. A schedule has either.
  virtual void backward(int chunk, int micro_batch, const Tensor& d_out, const Tensor& d_in) = 0;
  virtual void backward_input(int chunk, int micro_batch, const Tensor& d_out, const Tensor& d_in) = 0;
  virtual void backward_weight(int chunk, int micro_batch) = 0;
  // Of with_sharding(): make the chunk's weights whole (may be enqueued: the next pass on the chunk waits), let them go, sum its gradients.
  virtual void gather(int) {}
  virtual void release(int) {}
  virtual void reduce(int) {}
};

using PipelineClock = std::chrono::steady_clock;

// Hears of every action, in order: for traces. `begin` of a computation is when it could begin, all it waits for being there; of a receive
// it is the beginning of the wait. On a GPU these are the times at which the host enqueued.
class PipelineObserver {
 public:
  virtual ~PipelineObserver() = default;
  virtual void on_action(const Action& action, PipelineClock::time_point begin, PipelineClock::time_point end) = 0;
};

// How long an action took, by the clock of the device that it ran on: a computation, from when all it waits for was there, or a receive,
// which is the wait for its message.
struct TimedAction {
  Action action;
  double seconds = 0;
};

// Of one run: from the beginning of the first computation to the end of the last, and the time in computations; by the host's clock.
struct PipelineTimes {
  PipelineClock::time_point begin, end;
  std::chrono::nanoseconds busy{0};
  double bubble_fraction() const;  // the idle share of the span, 0 where nothing ran
};
// Whether the stages share a machine, and so a clock. Collective.
bool one_clock(Communicator& stages);
// One moment by the clock of each stage, an hour before a barrier ends there, which is about when it ends elsewhere. Collective.
PipelineClock::time_point common_moment(Communicator& stages);
// Over all stages: 1 - Σ busy / (p · span from the first begin to the last end of any), times counted from `origin`: nothing where all
// have one_clock(), else this stage's common_moment(). Collective over `stages`; waits for the result.
double bubble_fraction(Communicator& stages, const PipelineTimes& times, PipelineClock::time_point origin = {});

// What travels between two chunks, the same for every micro-batch.
struct BoundaryShape {
  std::int64_t rows = 0, columns = 0;  // N, C
  DType dtype = DType::f32;
  std::size_t slot_bytes() const;  // of one tensor, to the next multiple of the arena's alignment
};

class PipelineExecutor {
 public:
  struct Options {
    // Receives are posted as soon as their buffer is free. Not on GPUs: a receive blocks the host there (StagedCommunicator), or waits for
    // its message in a kernel, which takes multiprocessors from the computations beside it (NCCL). Those are posted where the table has
    // them, behind what the compute stream has to do until then, and the message's own time is no longer hidden.
    bool prefetch = true;
  };

  // `links` may be nullptr for a single stage. Buffers are allocated here, under names that begin with "pipeline". Everything but the
  // schedule must outlive the executor. A schedule with a fault is a programming error.
  PipelineExecutor(Schedule schedule, int rank, const BoundaryShape& shape, Device& device, Stream& compute, PipelineLinks* links);
  PipelineExecutor(Schedule schedule, int rank, const BoundaryShape& shape, Device& device, Stream& compute, PipelineLinks* links,
                   Options options);

  // Waits for the messages that still use its buffers.
  ~PipelineExecutor();
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  // One step: every action of this rank in the order of its table. Waits on the host only where the compute stream or a communicator does.
  // An exception aborts the links, so that the other stages do not wait for this one; executor and links are then of no more use.
  void run(StageWork& work, PipelineObserver* observer = nullptr);

  // Of the run before so many later ones (0: the last, 1), which must have ended on the device.
  PipelineTimes times(int runs_ago = 0);
  std::vector<TimedAction> timed_actions(int runs_ago = 0) const;
  const Schedule& schedule() const { return schedule_; }
  const BoundaryPlan& plan() const { return plan_; }
  const Options& options() const { return options_; }

 private:
  struct Span {
    Action action;
    Event begin, end;
  };
  // Messages of one direction into this rank, or what its own chunks hand on.
  struct Incoming {
    std::vector<Action> receives;  // of the table, in its order
    std::vector<Tensor> slots;
    std::vector<Event> arrived, freed;  // by slot
    std::vector<bool> occupied;         // by slot: from when its receive is posted until it is freed
    std::size_t posted = 0, taken = 0;  // receives
  };
  struct Outgoing {
    std::vector<Tensor> slots;
    std::vector<Event> sent;
    std::size_t written = 0, enqueued = 0;
  };

  void run_table(StageWork& work, PipelineObserver* observer);
  std::vector<Tensor> allocate_slots(const char* name, int slots);
  int slot_of(const Incoming& incoming, int chunk, int micro_batch) const;
  Tensor incoming_tensor(const Incoming& incoming, int chunk, int micro_batch) const;
  void post_free(Incoming& incoming);
  void post_next(Incoming& incoming, const Event& after = {});
  void receive(Incoming& incoming, const Action& action);
  void free_slot(Incoming& incoming, int chunk, int micro_batch);
  Tensor next_outgoing(Outgoing& outgoing);
  void send(Outgoing& outgoing, bool activation);
  void perform(StageWork& work, const Action& action);
  PipelineClock::time_point compute(StageWork& work, const Action& action);
  PipelineClock::time_point begin_computation(const Action& action);

  Schedule schedule_;
  int rank_;
  BoundaryShape shape_;
  Device& device_;
  Stream& compute_;
  PipelineLinks* links_;
  Options options_;
  BoundaryPlan plan_;
  std::vector<Buffer> buffers_;
  Incoming activations_, gradients_;          // inputs, outputs' gradients
  Outgoing out_activations_, out_gradients_;  // outputs, inputs' gradients
  DeviceClock clock_;
  std::array<std::vector<Span>, 2> spans_;  // of the last run and of the one before
};

}  // namespace baleen
