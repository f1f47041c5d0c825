// Fetching ahead what the processor does not foresee: rows that lie far apart.
#pragma once

namespace baleen::ops::cpu {

// The cache line at p, into the second-level cache: in the first, what is needed some kilobytes later would push out what is needed now,
// and few lines can be on their way to it at a time. Always inline: GCC 12 takes a function that does nothing else for one without effects,
// and drops its calls.
[[gnu::always_inline]] inline void prefetch(const void* p) {
  __builtin_prefetch(p, /*rw=*/0, /*locality=*/2);
}

}  // namespace baleen::ops::cpu
