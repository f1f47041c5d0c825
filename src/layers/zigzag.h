// Which tokens of a sequence each rank of context parallelism holds.
//
// The sequence is cut into 2·cp blocks of equal length and rank r holds blocks r and 2·cp-1-r, in this order: the first sees few keys, the
// second many, and with the causal mask every rank has the same number of pairs of query and key.
#pragma once

#include <cstdint>
#include <vector>

namespace baleen {

class ZigZag {
 public:
  // Rank `rank` of `ranks`; sequences of `length` (T) tokens. Throws Error(bad_config) where T is not a multiple of 2·cp (cp > 1).
  ZigZag(int ranks, int rank, std::int64_t length);

  std::int64_t local_length() const { return length_ / ranks_; }  // T/cp
  std::int64_t block_length() const { return local_length() / 2; }
  // Position in the sequence of this rank's token with this number, in [0, T/cp).
  std::int64_t position(std::int64_t local) const;

  // Of `batch` sequences that follow each other: the positions of this rank's rows [B·T/cp], and the rows of the whole [B·T] that these
  // are.
  std::vector<std::int32_t> positions(std::int64_t batch) const;
  std::vector<std::int64_t> rows(std::int64_t batch) const;

 private:
  int ranks_, rank_;
  std::int64_t length_;
};

}  // namespace baleen
