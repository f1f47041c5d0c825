#include "layers/zigzag.h"

#include <string>

#include "base/error.h"

namespace baleen {

ZigZag::ZigZag(int ranks, int rank, std::int64_t length) : ranks_(ranks), rank_(rank), length_(length) {
  BALEEN_CHECK(ranks >= 1 && rank >= 0 && rank < ranks && length >= 0, ranks, rank, length);
  if (ranks > 1 && length % (std::int64_t{2} * ranks) != 0)
    throw Error(ExitCode::bad_config,
                "a sequence of " + std::to_string(length) + " tokens does not divide into " + std::to_string(2 * ranks) +
                    " equal blocks for " + std::to_string(ranks) + " context-parallel ranks",
                "training.sequence_length x parallelism.context", "use a multiple of 2 x context, or fewer ranks");
}

std::int64_t ZigZag::position(std::int64_t local) const {
  if (ranks_ == 1) return local;
  const std::int64_t block = block_length();
  return local < block ? rank_ * block + local : (2 * ranks_ - 1 - rank_) * block + local - block;
}

std::vector<std::int32_t> ZigZag::positions(std::int64_t batch) const {
  std::vector<std::int32_t> out;
  out.reserve(static_cast<std::size_t>(batch * local_length()));
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t local = 0; local < local_length(); ++local) out.push_back(static_cast<std::int32_t>(position(local)));
  return out;
}

std::vector<std::int64_t> ZigZag::rows(std::int64_t batch) const {
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(batch * local_length()));
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t local = 0; local < local_length(); ++local) out.push_back(b * length_ + position(local));
  return out;
}

}  // namespace baleen
