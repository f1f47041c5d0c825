// When work on a stream got somewhere: on a GPU by its own clock, since the host may be far ahead.
#pragma once

#include "device/stream.h"

namespace baleen {

// An event that also knows when it was reached. Not while a graph is recorded.
Event record_time(Stream& stream);
// From one such event to another of the same device; both must be complete.
double seconds_between(const Event& begin, const Event& end);

}  // namespace baleen
