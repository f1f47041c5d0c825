#include "train/evaluation.h"

#include <algorithm>
#include <array>
#include <vector>

#include "train/step.h"

namespace baleen {

EvaluationResult evaluate(Engine& engine, const BatchSource& data, std::int64_t sequences) {
  const DataGroup& group = engine.group();
  const std::int64_t length = data.sequence_length(), share = (sequences + group.data_size - 1) / group.data_size;
  const std::int64_t begin = std::min(sequences, group.data_rank * share), end = std::min(sequences, begin + share);
  // A few sequences at a time, so that a large validation set needs no memory.
  constexpr std::int64_t block = 64;
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(block * length)), targets(inputs.size());
  std::array<double, 2> totals{};  // Σ token losses, valid targets
  // Every rank takes as many blocks and micro-steps as the one with the most sequences: passes of sharded weights meet in their gathers.
  for (std::int64_t done = 0; done < share; done += block) {
    const std::int64_t first = std::min(end, begin + done), count = std::min(block, end - first), most = std::min(block, share - done);
    for (std::int64_t i = 0; i < count; ++i)
      data.fill(static_cast<std::uint64_t>(first + i), 0, 1, inputs.data() + i * length, targets.data() + i * length);
    const auto elements = static_cast<std::size_t>(count * length);
    const HostBatch batch{{inputs.data(), elements}, {targets.data(), elements}, count};
    totals[0] += engine.loss(batch, engine.micro_steps(most));
    if (engine.counts_batch()) totals[1] += static_cast<double>(count_valid(batch.targets));
  }
  engine.everyone().all_reduce(totals.data(), totals.data(), totals.size(), DType::f64, ReduceOp::sum).wait();
  return {totals[1] > 0 ? totals[0] / totals[1] : 0.0, static_cast<std::int64_t>(totals[1])};
}

}  // namespace baleen
