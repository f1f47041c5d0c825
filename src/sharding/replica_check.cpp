#include "sharding/replica_check.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"

namespace baleen {
namespace {

// The value most ranks hold; with a tie, the one of the lowest rank among the tied.
std::uint64_t majority(const std::vector<std::uint64_t>& hashes) {
  std::map<std::uint64_t, int> votes;
  for (const std::uint64_t hash : hashes) ++votes[hash];
  std::uint64_t best = hashes.front();
  for (const std::uint64_t hash : hashes)
    if (votes[hash] > votes[best]) best = hash;
  return best;
}

}  // namespace

void check_replicas(Communicator& axis, const UnitStorage& storage) {
  if (axis.size() == 1) return;
  const std::vector<ParameterId> parameters = storage.parameters();
  const auto size = static_cast<std::size_t>(axis.size());
  std::vector<std::uint64_t> mine(parameters.size()), all(parameters.size() * size);
  std::vector<std::byte> memory;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor weight = storage.on_host(storage.kept_weights(parameters[i]), memory);
    mine[i] = hash_bytes(weight.data(), weight.bytes());
  }
  axis.all_gather(mine.data(), all.data(), mine.size(), DType::u64).wait();

  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<std::uint64_t> hashes(size);
    for (std::size_t rank = 0; rank < size; ++rank) hashes[rank] = all[rank * parameters.size() + i];
    const std::uint64_t expected = majority(hashes);
    std::string different;
    for (std::size_t rank = 0; rank < size; ++rank)
      if (hashes[rank] != expected) different += fmt::format("{}{}", different.empty() ? "" : ", ", rank);
    if (different.empty()) continue;
    throw Error(ExitCode::bad_numbers, fmt::format("the replicas differ: rank {} no longer holds the weights the others hold", different),
                fmt::format("parameter {} (first that differs), axis {} of {} ranks", storage.parameter(parameters[i]).name, axis.name(), size),
                "suspect that rank's memory or processor; start again from a checkpoint written before: `baleen train … --resume STEP`");
  }
}

}  // namespace baleen
