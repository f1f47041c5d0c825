// Validation: the mean loss over held-out sequences, the same whatever the number of ranks.
#pragma once

#include <cstdint>

#include "data/loader.h"
#include "data/multiple_choice.h"
#include "train/engine.h"

namespace baleen {

struct EvaluationResult {
  double loss = 0;          // mean over valid targets, nats a token
  std::int64_t tokens = 0;  // valid targets
};

// The first `sequences` samples of `data` (sequential order, global batch 1), divided over the engine's axis. Collective.
EvaluationResult evaluate(Engine& engine, const BatchSource& data, std::int64_t sequences);

struct ChoiceResult {
  std::int64_t examples = 0;
  std::int64_t right = 0;               // where the right choice has the least mean token loss: acc_norm of llm.c's eval.py
  std::int64_t right_unnormalized = 0;  // where it has the least sum of token losses
};

// Scores every choice behind its context. `engine` takes one sequence at a time, as long as longest_choice() of the examples or longer;
// ranks of its data group divide the examples. Collective. Throws Error(bad_numbers) where a loss is not finite.
ChoiceResult evaluate_choices(Engine& engine, const std::vector<ChoiceExample>& examples, std::int64_t sequence_length);

// Tokens of the longest context with a choice, less one.
std::int64_t longest_choice(const std::vector<ChoiceExample>& examples);

}  // namespace baleen
