// Proves that layouts compute what one rank computes: loss, gradient norm and every parameter's gradient at the initial weights, on a
// batch with targets to ignore that fall unevenly on ranks and micro-batches (docs/numerics.md, "What is equal to what").
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "train/config.h"
#include "train/layout.h"

namespace baleen {

struct LayoutResult {
  ParallelLayout layout;
  double loss_error = 0, grad_norm_error = 0;  // relative to the reference
  std::string worst_parameter;                 // whose gradient comes nearest to its bound, or exceeds it most
  double worst_error = 0;                      // ‖Δg‖ / ‖g‖ of it
  double bound = 0;                            // what that may be: 1e-5, or in bf16 twice one rank's error, + 1e-8 · ‖whole gradient‖ / ‖g‖
  std::string first_bad_parameter;             // outside its bound, in the order of the model: where to begin to look; empty: none
  bool ok = false;
};

struct VerifyReport {
  double reference_loss = 0, reference_grad_norm = 0;
  std::vector<LayoutResult> layouts;
};

// Runs the reference (in fp32, and in the configuration's dtype for its rounding) on rank 0 and each layout on the first ranks of the
// world. Collective; the report is whole on rank 0. `config` has its model resolved; layouts must be runnable. Throws Error(bad_numbers)
// on rank 0, before any layout, where the reference is not finite: its peers then wait for nothing (World::abort).
VerifyReport verify_layouts(const Config& config, World& world, const std::vector<ParallelLayout>& layouts);

}  // namespace baleen
