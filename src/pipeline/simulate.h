// Plays a schedule in virtual time.
#pragma once

#include <cstddef>
#include <vector>

#include "pipeline/schedule.h"

namespace baleen {

// Time that each action on a chunk takes, in any unit. `backward` takes both halves.
struct ChunkCosts {
  double forward = 1, backward_input = 1, backward_weight = 1;
};

struct SimulationOptions {
  double latency = 0;  // from a send to its arrival
  // A receive is posted as soon as its buffer is free, as the executor does it. Without: when its rank gets to it, and the rank waits
  // there for the message, as with communicators that block the host. What cannot hang so cannot hang the other way.
  bool prefetch = true;
};

struct SimulatedSpan {
  double begin = 0, end = 0;
};

struct Simulation {
  bool complete = false;                          // false: ranks wait for each other for ever
  std::vector<std::size_t> next;                  // by rank: the action it has not finished (the table's size: none)
  std::vector<std::vector<SimulatedSpan>> spans;  // by rank and action; of a receive the wait for its message
  std::vector<double> busy;                       // by rank: time in forward and backward
  double makespan = 0;                            // from 0 to the end of the last action
  double bubble_fraction = 0;                     // 1 - Σ busy / (p · makespan)
};

// `costs` has one entry a chunk, or one for all. Sends wait for their receive to be posted (rendezvous), but only the next but one
// computation that writes a message of the same direction waits for the send (outgoing_slots). The table may be wrong as long as every
// action's chunk and micro-batch exist and the messages between two ranks are sent and received in the same order.
Simulation simulate(const Schedule& schedule, const std::vector<ChunkCosts>& costs, const SimulationOptions& options = {});

}  // namespace baleen
