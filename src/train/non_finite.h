// Which parameter, and which rank, made a step's numbers bad.
#pragma once

#include <string>

#include "train/engine.h"

namespace baleen {

// After a step whose loss or gradient norm was not finite, with the weights as they were before it: looks for weights that are no numbers
// themselves, then computes the step's gradients again and looks for the ranks whose own loss, and the first parameter whose gradient, is
// not finite. Collective over everyone; every rank gets the same text, such as "first parameter with a non-finite gradient: x (rank 2)".
std::string name_non_finite(Engine& engine, const HostBatch& batch, double valid_tokens);

// Throws Error(bad_numbers) where `value`, which all ranks have, is not finite: "the loss is not finite" for a `what` of "loss", and names
// the first parameter whose weights are not finite themselves. Collective then.
void check_finite(Engine& engine, double value, const std::string& what);

}  // namespace baleen
