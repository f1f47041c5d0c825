// A shuffled order that is computed, not stored.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace baleen {

// A pseudo-random bijection of [0, size) keyed by (seed, epoch): a Feistel network over a grid of rows · columns ≥ size cells, rounds
// from Philox, with cycle-walking over the fewer than `rows` cells too many (J. Black, P. Rogaway, "Ciphers with arbitrary finite
// domains", 2002). O(1) memory and time a value, for any size up to 2^40 and more.
class Shuffle {
 public:
  Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);
  std::uint64_t operator()(std::uint64_t index) const;
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_, rows_, columns_;
  Philox philox_;
};

}  // namespace baleen
