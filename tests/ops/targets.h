// Chooses the instruction set that the operations run with.
#pragma once

#include "ops/cpu/targets.h"

#include <cstdint>

#include "hwy/highway.h"

namespace baleen::ops::testing {

// With `portable`, the instructions that every processor of this architecture has; else the best of this one.
class InstructionsScope {
 public:
  explicit InstructionsScope(bool portable) {
    if (portable) choose(HWY_STATIC_TARGET);
  }
  ~InstructionsScope() { choose(0); }
  InstructionsScope(const InstructionsScope&) = delete;
  InstructionsScope& operator=(const InstructionsScope&) = delete;

 private:
  static void choose(std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

}  // namespace baleen::ops::testing
