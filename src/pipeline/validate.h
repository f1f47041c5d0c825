// Whether a schedule can run at all.
#pragma once

#include <optional>
#include <string>

#include "pipeline/schedule.h"

namespace baleen {

// The first fault of the table in words, or nothing. A table without fault
// - is complete: forward and backward (whole, or each half) of every chunk and micro-batch exactly once, on the chunk's rank, in their
// order
//   on the rank, each with the messages it needs before and after it and no others;
// - sends the messages between two ranks in the order in which they are received;
// - cannot hang: a receive waits for its message, and a computation that writes one waits until the receive before the last is posted
//   (outgoing_slots). That is how the executor works without posting receives ahead; with it, it waits for less;
// - keeps its promises on activations in flight and, where it gathers, computes only on chunks that are whole, on no more at once than it
//   promises, releases them all and reduces each chunk once after its last backward.
std::optional<std::string> find_fault(const Schedule& schedule);

}  // namespace baleen
