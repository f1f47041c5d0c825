// Whether a training fits into its GPU, known before anything is allocated, and what would fit.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "train/engine.h"

namespace baleen {

struct TrainingMemory {
  std::map<std::string, std::size_t> allocations;  // of the device by name, in bytes
  std::size_t bytes = 0;                           // the most held at once
};

// What an engine and its optimizer take on a device of the kind of `device`: they are built on one that only counts (device/host_memory.h),
// so the figures are those of the run itself. Needs no collective.
TrainingMemory training_memory(EngineOptions options, const EngineGroups& groups, Device& device);

// `options` again, where the training fits into `available` bytes. Else throws Error (ExitCode::out_of_memory) with the largest allocations
// and with those changes of single settings, or else of several, after which it would fit.
EngineOptions check_memory(EngineOptions options, const EngineGroups& groups, Device& device, std::size_t available);
// With what is free on the options' device, less what its libraries take for themselves. Devices other than GPUs are not checked.
EngineOptions check_memory(EngineOptions options, const EngineGroups& groups);

}  // namespace baleen
