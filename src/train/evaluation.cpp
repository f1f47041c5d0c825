#include "train/evaluation.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "ops/cross_entropy.h"
#include "train/non_finite.h"
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

namespace {

// Whether the right choice has the least of these losses, the first of equals counting.
bool is_right(const ChoiceExample& example, std::span<const double> losses) {
  return static_cast<std::size_t>(std::min_element(losses.begin(), losses.end()) - losses.begin()) == example.right;
}

}  // namespace

ChoiceResult evaluate_choices(Engine& engine, const std::vector<ChoiceExample>& examples, std::int64_t sequence_length) {
  const auto length = static_cast<std::size_t>(sequence_length), count = examples.size();
  const auto size = static_cast<std::size_t>(engine.group().data_size), rank = static_cast<std::size_t>(engine.group().data_rank);
  std::size_t most = 0;  // choices of an example
  for (const ChoiceExample& example : examples) most = std::max(most, example.choices.size());
  // Σ token losses of each choice, [examples, most]. Ranks that share a sequence have parts of its sum.
  std::vector<double> losses(count * most, 0.0);
  std::vector<std::int32_t> inputs(length), targets(length);
  // Every rank makes as many passes as the others: passes meet in their communication.
  for (std::size_t pass = 0; pass < (count + size - 1) / size * most; ++pass) {
    const std::size_t number = pass / most * size + rank, choice = pass % most;
    std::fill(inputs.begin(), inputs.end(), 0);
    std::fill(targets.begin(), targets.end(), ops::ignore_index);
    const bool present = number < count && choice < examples[number].choices.size();
    if (present) {
      std::vector<std::int32_t> text = examples[number].context;
      const std::vector<std::int32_t>& tokens = examples[number].choices[choice];
      text.insert(text.end(), tokens.begin(), tokens.end());
      BALEEN_CHECK(text.size() <= length + 1, text.size(), length);
      std::copy(text.begin(), text.end() - 1, inputs.begin());
      std::copy(tokens.begin(), tokens.end(), targets.begin() + static_cast<std::ptrdiff_t>(examples[number].context.size()) - 1);
    }
    const double loss = engine.loss({inputs, targets, 1}, 1);
    if (present) losses[number * most + choice] = loss;
  }
  engine.everyone().all_reduce(losses.data(), losses.data(), losses.size(), DType::f64, ReduceOp::sum).wait();
  check_finite(engine, std::accumulate(losses.begin(), losses.end(), 0.0), "loss of a choice");
  ChoiceResult result;
  for (std::size_t number = 0; number < count; ++number) {
    const std::span<double> sums = std::span(losses).subspan(number * most, examples[number].choices.size());
    if (is_right(examples[number], sums)) ++result.right_unnormalized;
    for (std::size_t choice = 0; choice < sums.size(); ++choice)
      sums[choice] /= static_cast<double>(examples[number].choices[choice].size());
    if (is_right(examples[number], sums)) ++result.right;
    ++result.examples;
  }
  return result;
}

}  // namespace baleen
