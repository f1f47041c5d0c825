#include "sharding/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/parallel_tasks.h"

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

struct WeightHash {
  ParameterId id;
  std::uint64_t hash = 0;
};

// Of what is kept of every parameter. Host memory is hashed by all threads.
std::vector<WeightHash> hash_weights(const UnitStorage& storage) {
  std::vector<WeightHash> hashes;
  for (const ParameterId id : storage.parameters()) hashes.push_back({id, 0});
  std::mutex copies;
  std::vector<std::vector<std::byte>> memories(static_cast<std::size_t>(omp_get_max_threads()));
  parallel_tasks(static_cast<std::int64_t>(hashes.size()), [&](std::int64_t task, int thread) {
    WeightHash& each = hashes[static_cast<std::size_t>(task)];
    const Tensor weight = storage.kept_weights(each.id);
    Tensor readable;
    {
      const std::lock_guard lock(copies);
      readable = storage.on_host(weight, memories[static_cast<std::size_t>(thread)]);
    }
    each.hash = hash_bytes(readable.data(), readable.bytes());
  });
  return hashes;
}

// `number`: what this rank is called in the message.
void compare(Communicator& axis, int number, const UnitStorage& storage, const std::vector<WeightHash>& held) {
  if (axis.size() == 1) return;
  const auto size = static_cast<std::size_t>(axis.size());
  std::vector<std::int32_t> numbers(size);
  const auto own_number = static_cast<std::int32_t>(number);
  axis.all_gather(&own_number, numbers.data(), 1, DType::i32).wait();
  std::vector<std::uint64_t> mine, all(held.size() * size);
  for (const WeightHash& each : held) mine.push_back(each.hash);
  axis.all_gather(mine.data(), all.data(), mine.size(), DType::u64).wait();

  for (std::size_t i = 0; i < held.size(); ++i) {
    std::vector<std::uint64_t> hashes(size);
    for (std::size_t rank = 0; rank < size; ++rank) hashes[rank] = all[rank * held.size() + i];
    const std::uint64_t expected = majority(hashes);
    std::string different;
    for (std::size_t rank = 0; rank < size; ++rank)
      if (hashes[rank] != expected) different += fmt::format("{}{}", different.empty() ? "" : ", ", numbers[rank]);
    if (different.empty()) continue;
    throw Error(
        ExitCode::bad_numbers, fmt::format("the replicas differ: rank {} no longer holds the weights the others hold", different),
        fmt::format("parameter {} (first that differs), axis {} of {} ranks", storage.parameter(held[i].id).name, axis.name(), size),
        "suspect that rank's memory or processor; start again from a checkpoint written before: `baleen train … --resume STEP`");
  }
}

template <class Wanted>
std::vector<WeightHash> those(const std::vector<WeightHash>& hashes, Wanted wanted) {
  std::vector<WeightHash> out;
  std::copy_if(hashes.begin(), hashes.end(), std::back_inserter(out), [&](const WeightHash& each) { return wanted(each.id); });
  return out;
}

}  // namespace

void check_replicas(Communicator& axis, const UnitStorage& storage) {
  compare(axis, axis.rank(), storage, hash_weights(storage));
}

void check_replicas(const DataGroup& group, const UnitStorage& storage) {
  const bool whole = storage.keeps_whole_weights();
  const int number = group.everyone->rank();
  if (!whole && group.replicas == nullptr) return;
  const std::vector<WeightHash> hashes = hash_weights(storage);
  if (whole)
    compare(group.batch, number, storage, hashes);
  else
    compare(*group.replicas, number, storage, hashes);
  // What ranks of tensor parallelism have in common lies elsewhere in the shards of each.
  if (!whole) return;
  using Copies = HeldBox::Copies;
  const auto copied = [&](Copies copies) {
    return those(hashes, [&](ParameterId id) { return storage.parameter(id).held.copies == copies; });
  };
  if (group.tensor != nullptr) compare(*group.tensor, number, storage, copied(Copies::all));
  if (group.kv_heads != nullptr) compare(*group.kv_heads, number, storage, copied(Copies::some));
  if (group.tied != nullptr)
    compare(*group.tied, number, storage, those(hashes, [&](ParameterId id) { return storage.unit(id.unit).kind == UnitKind::embedding; }));
}

}  // namespace baleen
