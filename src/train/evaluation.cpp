#include "train/evaluation.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "ops/cross_entropy.h"
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

std::int64_t longest_choice(const std::vector<ChoiceExample>& examples) {
  std::size_t longest = 1;
  for (const ChoiceExample& example : examples)
    for (const auto& choice : example.choices) longest = std::max(longest, example.context.size() + choice.size() - 1);
  return static_cast<std::int64_t>(longest);
}

ChoiceResult evaluate_choices(Engine& engine, const std::vector<ChoiceExample>& examples, std::int64_t sequence_length) {
  const DataGroup& group = engine.group();
  const auto length = static_cast<std::size_t>(sequence_length), count = examples.size();
  std::size_t most = 0;  // choices of an example
  for (const ChoiceExample& example : examples) most = std::max(most, example.choices.size());
  std::array<std::int64_t, 3> totals{};
  std::vector<std::int32_t> inputs(length), targets(length);
  const auto size = static_cast<std::size_t>(group.data_size), rank = static_cast<std::size_t>(group.data_rank);
  // Every rank makes as many passes as the others: passes of sharded weights meet in their gathers.
  for (std::size_t first = 0; first < count; first += size) {
    const ChoiceExample* example = first + rank < count ? &examples[first + rank] : nullptr;
    std::vector<double> sums, means;
    for (std::size_t choice = 0; choice < most; ++choice) {
      std::fill(inputs.begin(), inputs.end(), 0);
      std::fill(targets.begin(), targets.end(), ops::ignore_index);
      const bool present = example != nullptr && choice < example->choices.size();
      if (present) {
        std::vector<std::int32_t> text = example->context;
        const std::vector<std::int32_t>& tokens = example->choices[choice];
        text.insert(text.end(), tokens.begin(), tokens.end());
        BALEEN_CHECK(text.size() <= length + 1, text.size(), length);
        std::copy(text.begin(), text.end() - 1, inputs.begin());
        std::copy(tokens.begin(), tokens.end(), targets.begin() + static_cast<std::ptrdiff_t>(example->context.size()) - 1);
      }
      const double loss = engine.loss({inputs, targets, 1}, 1);  // 0 on the ranks that do not count the batch
      if (!present) continue;
      sums.push_back(loss);
      means.push_back(loss / static_cast<double>(example->choices[choice].size()));
    }
    if (example == nullptr || !engine.counts_batch()) continue;
    const auto least = [](const std::vector<double>& values) { return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin()); };
    totals[0] += 1;
    totals[1] += least(means) == example->right ? 1 : 0;
    totals[2] += least(sums) == example->right ? 1 : 0;
  }
  std::array<double, 3> sums{};
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<double>(totals[i]);
  engine.everyone().all_reduce(sums.data(), sums.data(), sums.size(), DType::f64, ReduceOp::sum).wait();
  return {static_cast<std::int64_t>(sums[0]), static_cast<std::int64_t>(sums[1]), static_cast<std::int64_t>(sums[2])};
}

}  // namespace baleen
