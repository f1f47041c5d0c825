// Pipeline schedules as tables (docs/parallelism.md): for each rank the actions that it runs, one after the other.
//
// A model is cut into p·v chunks, p pipeline ranks with v virtual stages each; rank r holds chunks r, r+p, r+2p, … Data flows through the
// chunks in ascending order, gradients in descending order. The same table drives the executor, the validator and the simulator.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace baleen {

enum class ActionKind {
  forward,
  backward,         // both halves
  backward_input,   // the gradient of the chunk's input
  backward_weight,  // the gradients of its weights
  send_activation,  // the output of `chunk`, to chunk + 1
  recv_activation,  // the input of `chunk`, from chunk - 1
  send_gradient,    // the gradient of the input of `chunk`, to chunk - 1
  recv_gradient,    // the gradient of the output of `chunk`, from chunk + 1
  gather,           // the weights of `chunk` become whole; as the two below for all micro-batches
  release,          // they may go again
  reduce,           // the gradients of `chunk` are complete on this rank: sum them over the data axis
};
std::string_view action_name(ActionKind kind);

struct Action {
  ActionKind kind = ActionKind::forward;
  int chunk = 0;
  int micro_batch = -1;  // -1 where the action is for all of them
  bool operator==(const Action&) const = default;

  bool compute() const { return kind <= ActionKind::backward_weight; }
  // The two that a chunk's backward pass begins and ends with are one in `backward`.
  bool first_backward() const { return kind == ActionKind::backward || kind == ActionKind::backward_input; }
  bool last_backward() const { return kind == ActionKind::backward || kind == ActionKind::backward_weight; }
};
std::string describe(const Action& action);  // "backward_input of chunk 3, micro-batch 5"

enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zero_bubble };
// As in `parallelism.schedule`: "gpipe", "1f1b", "interleaved", "zero-bubble".
std::string_view schedule_name(ScheduleKind kind);
// Throws Error(bad_config) naming the four.
ScheduleKind parse_schedule(std::string_view name);

struct Schedule {
  ScheduleKind kind = ScheduleKind::one_f_one_b;
  int stages = 1, virtual_stages = 1, micro_batches = 1;  // p, v, m
  bool forward_only = false;                              // evaluation: no backward at all
  std::vector<std::vector<Action>> ranks;                 // [p]

  // Promises that find_fault() holds the table to, by rank. The most pairs of (chunk, micro-batch) at once whose forward pass has begun and
  // whose last pass has not ended; and the most chunks whose weights are whole at once, where the table gathers (else 0).
  std::vector<int> activations_in_flight;
  std::vector<int> weights_gathered;

  int chunks() const { return stages * virtual_stages; }
  int rank_of(int chunk) const { return chunk % stages; }
  int local(int chunk) const { return chunk / stages; }  // which of its rank's chunks
  bool first(int chunk) const { return chunk == 0; }
  bool last(int chunk) const { return chunk == chunks() - 1; }
  // Whether the output of `chunk` goes to another rank; with one rank it stays.
  bool sends_output(int chunk) const { return stages > 1 && !last(chunk); }
  bool receives_input(int chunk) const { return stages > 1 && !first(chunk); }
  // Whether nothing of the micro-batch stays on the chunk after this action.
  bool ends(const Action& action) const { return forward_only ? action.kind == ActionKind::forward : action.last_backward(); }
};

// The table for `stages` pipeline ranks and `micro_batches` a step, any number of each. `virtual_stages` other than 1: interleaved only.
// Throws Error(bad_config) for numbers below 1 and for virtual stages that the schedule does not have.
//
// - gpipe: all forwards, then all backwards. Y. Huang et al., "GPipe", arXiv 1811.06965. Keeps m micro-batches.
// - 1f1b: p-r forwards ahead, then one forward for one backward. D. Narayanan et al., "PipeDream", SOSP 2019, with the flush of
//   "Memory-efficient pipeline-parallel DNN training", arXiv 2006.09503. Rank r keeps p-r micro-batches, whatever m is.
// - interleaved: micro-batches go in groups of p through each of a rank's chunks. D. Narayanan et al., "Efficient large-scale language
//   model training on GPU clusters using Megatron-LM", arXiv 2104.04473. There m is a multiple of p; here the last group may be short,
//   which costs bubble.
// - zero-bubble: ZB-H1 of P. Qi, X. Wan, G. Huang and M. Lin, "Zero bubble pipeline parallelism", arXiv 2401.10241. The weight half of
//   rank r lags r micro-batches behind the input half, so that every rank keeps p: the most that 1F1B keeps on any rank.
Schedule make_schedule(ScheduleKind kind, int stages, int virtual_stages, int micro_batches);
// The forward passes alone, in interleaved order, for evaluation.
Schedule make_forward_schedule(int stages, int virtual_stages, int micro_batches);

// Adds what sharded memory does to a table of computations and messages: `reduce` after the last backward of each chunk and, where
// `whole_chunks` > 0 (ZeRO-3), `gather` before and `release` after runs of actions on one chunk. At most `whole_chunks` chunks' weights
// are whole on a rank at once; from two on, the next run's are gathered while the run before it computes.
Schedule with_sharding(Schedule schedule, int whole_chunks);

}  // namespace baleen
